"""Message templates: names and number formats, and nothing that could reach further or raise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.alerts.rules.template import MOST, fill


@pytest.mark.promise("S1-035")
def test_a_placeholder_that_is_no_metric_stays():
    """`{target_loss:.2f}` without such a value is no error: the rest of the message is told."""
    assert fill("loss {loss:.2f} of {target_loss:.2f}", {"loss": 3.14159}) == "loss 3.14 of {target_loss}"


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{x}}", "{x}"),
        ("{x!r}", "{x!r}"),
        ("{x:>99999999}", "1.5"),
        ("{x:.1%}", "150.0%"),
        ("{text:.2f}", "words"),
        ("{none}", "None"),
        ("{x", "{x"),
        ("{gpu/0/power}", "7"),
    ],
)
def test_formats(template, told):
    """A format that fits is used, one that does not is left out."""
    assert fill(template, {"x": 1.5, "text": "words", "none": None, "gpu/0/power": 7}) == told


@pytest.mark.parametrize(
    "template", ["{x.__class__}", "{x[0]}", "{x.__class__.__mro__[1].__subclasses__}", "{0}", "{}"]
)
def test_no_attribute_and_no_item_is_reached(template):
    """Rule S12: a template reads values by name alone."""
    assert fill(template, {"x": 1.5}) == template


@given(st.text(max_size=100), st.dictionaries(st.text(max_size=5), st.floats() | st.integers() | st.text() | st.none()))
def test_nothing_is_ever_raised(template, values):
    """Any template with any values gives a text of bounded length."""
    assert len(fill(template, values)) <= MOST


def test_length_is_bounded():
    """A template that repeats a long value is cut."""
    assert len(fill("{x}" * 1000, {"x": "y" * 10_000})) == MOST
