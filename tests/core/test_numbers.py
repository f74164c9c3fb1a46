"""Numbers for people follow one table, which the page's tests read too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core import numbers

CASES = json.loads((Path(__file__).parents[1] / "golden" / "numbers.json").read_text())
UNITS = ("", "seconds", "bytes", "ratio", "percent", "MiB", "rows", "bytes/second", "watts")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']} {case['value']} {case['unit']}".strip())
def test_a_number_reads_as_the_table_says(case):
    """Each row of the table is one kind, value and unit with its text."""
    value = float(case["value"]) if isinstance(case["value"], str) else case["value"]
    show = getattr(numbers, f"format_{case['kind']}")
    assert (show(value, case["unit"]) if case["kind"] in {"value", "short"} else show(value)) == case["expected"]


@given(st.floats(), st.sampled_from(UNITS))
def test_no_number_is_long(value, unit):
    """Every float of every unit takes at most 24 characters."""
    assert 0 < len(numbers.format_value(value, unit)) <= 24
    assert len(numbers.format_short(value, unit)) <= 24
    assert len(numbers.format_change(value)) <= 24


@given(st.floats(1e-9, 1e9))
def test_a_number_is_close(value):
    """The text of a plain number is within half a percent of it."""
    assert float(numbers.format_value(value)) == pytest.approx(value, rel=5e-3)
