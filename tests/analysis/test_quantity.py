"""Changes in words."""

from __future__ import annotations

import pytest

from stepscope.analysis.compare.quantity import percent


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, "-"),
        (0.0123, "+1.23 %"),
        (-0.5, "-50.0 %"),
        (9.0, "+900 %"),
        (59.0, "60 times"),
        (7.4e20, "over 100 000 times"),
        (float("inf"), "over 100 000 times"),
    ],
)
def test_a_change_has_about_three_digits(ratio, text):
    """Up to ten times what it was it is a percentage, beyond that so many times."""
    assert percent(ratio) == text
