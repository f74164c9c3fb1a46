from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.session.histogram import MOST_BINS, describe_array


@given(st.lists(st.floats()), st.integers(1, 80))
def test_every_value_is_counted(values, bins):
    """Whatever the values, every finite one is in a bin, the others are counted, and nothing warns."""
    found = describe_array(values, bins)
    finite = [value for value in values if math.isfinite(value)]
    assert (found["count"], found["nonfinite"]) == (len(values), len(values) - len(finite))
    if finite:
        assert sum(found["counts"]) <= len(finite)
        assert len(found["edges"]) == len(found["counts"]) + 1
        assert (found["min"], found["max"]) == (min(finite), max(finite))
    else:
        assert "counts" not in found


@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_bins_hold_all(values):
    """Values of an ordinary size are all in the bins, from the lowest to the highest."""
    found = describe_array(values)
    assert sum(found["counts"]) == len(values)
    assert found["edges"][0] <= min(values)
    assert found["edges"][-1] >= max(values)


@pytest.mark.parametrize("bins", [-5, 0, 1, 10**9])
def test_number_of_bins(bins):
    """The number of bins is at least one, and not more than an event holds."""
    assert 1 <= len(describe_array(range(10), bins)["counts"]) <= MOST_BINS


def test_moments():
    """Mean and standard deviation (of the population) are over the finite values."""
    found = describe_array(np.array([[1.0, 3.0], [np.inf, np.nan]]))
    assert (found["mean"], found["std"], found["nonfinite"]) == (2.0, 1.0, 2)
