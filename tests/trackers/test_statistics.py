from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trackers.metrics.statistics import Statistics, percentile, summarise

MODERATE = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(MODERATE)
@pytest.mark.promise("S4-020")
def test_running_figures_equal_numpy(values):
    """Mean and standard deviation are numpy's own, with ddof=0, after any sequence."""
    found = Statistics(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-6)
    assert found.std == pytest.approx(np.std(values), rel=1e-6, abs=1e-5)
    assert (found.minimum, found.maximum, found.count) == (min(values), max(values), len(values))


@given(MODERATE, st.floats(0, 100))
def test_percentiles_interpolate_as_numpy(values, percent):
    """A percentile is numpy's default one."""
    assert percentile(sorted(values), percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-6)


def test_no_digits_are_lost_far_from_zero():
    """A small spread around a large value is measured right."""
    assert Statistics([1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16]).std == pytest.approx(math.sqrt(22.5))


def test_values_near_the_largest_float_do_not_overflow():
    """The mean of huge values of both signs stays finite."""
    assert Statistics([1.7e308, -1.7e308, 1.7e308]).mean == pytest.approx(1.7e308 / 3)


def test_nonfinite_values_are_only_counted():
    """NaN and infinities enter no figure but their count."""
    found = Statistics([1.0, math.nan, 3.0, math.inf, -math.inf])
    assert (found.count, found.mean, found.minimum, found.maximum, found.nonfinite) == (2, 2.0, 1.0, 3.0, 3)


def test_nothing_known_is_none():
    """Without a finite value every figure is absent, not 0."""
    summary = summarise(Statistics([math.nan]), [math.nan], None)
    assert summary == {"count": 1, "nonfinite": 1} | dict.fromkeys(
        ("mean", "std", "min", "max", "p50", "p95", "p99", "last")
    )
