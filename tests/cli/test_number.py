from __future__ import annotations

import argparse

import pytest

from stepscope.cli.text.number import gpu_index, port, real, whole


@pytest.mark.parametrize(
    ("read", "text", "number"),
    [(whole(1), "1", 1), (whole(0, 9), "9", 9), (port, "0", 0), (gpu_index, "7", 7), (real(0.1, 2), "0.1", 0.1)],
)
def test_numbers_within_bounds(read, text, number):
    """A number between its bounds, both included, is taken as it is."""
    assert read(text) == number


@pytest.mark.parametrize(
    ("read", "text", "cause"),
    [
        (whole(1), "0", "'0' is not a whole number of 1 or more"),
        (whole(1), "1.5", "'1.5' is not a whole number of 1 or more"),
        (port, "65536", "'65536' is not a whole number from 0 to 65535"),
        (real(0), "nan", "'nan' is not a number of 0 or more"),
        (real(0), "inf", "'inf' is not a number of 0 or more"),
        (real(0.1, 3600), "ten", "'ten' is not a number from 0.1 to 3600"),
    ],
)
def test_other_numbers_are_refused(read, text, cause):
    """What is no such number is refused with what was given and what is wanted."""
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        read(text)
    assert str(caught.value) == cause
