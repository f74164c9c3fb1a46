from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.series.autocorrelation import MOST_POINTS, correlation_time, mean_error


def chain(count, common, seed=0):
    """Return values each of which keeps a share of the one before."""
    noise = np.random.default_rng(seed).normal(size=count)
    for place in range(1, count):
        noise[place] += common * noise[place - 1]
    return noise


@pytest.mark.parametrize("common", [0.0, 0.5, 0.9])
def test_correlation_time_is_that_of_the_process(common):
    """The integrated autocorrelation time of a first-order chain is (1 + c) / (1 - c)."""
    found = np.mean([correlation_time(chain(4000, common, seed)) for seed in range(5)])
    assert found == pytest.approx((1 + common) / (1 - common), rel=0.25)


@pytest.mark.parametrize("common", [0.0, 0.7, 0.95])
def test_error_of_a_mean_holds(common):
    """The means of many series scatter as much as the error of each says, however much neighbours have in common."""
    means = [mean_error(chain(1000, common, seed)) for seed in range(120)]
    scatter = np.std([mean.value for mean in means])
    assert 0.75 < np.median([mean.error for mean in means]) / scatter < 1.35


def test_drift_widens_the_error():
    """A series that only drifts is worth few independent values, not many."""
    assert mean_error(np.linspace(0, 1, 1000)).effective < 10
    assert mean_error(np.linspace(0, 1, 1000)).error > 0.1


def test_long_series_are_averaged_first():
    """A million points have the error that their number gives."""
    mean = mean_error(np.random.default_rng(0).normal(5, 1, 8 * MOST_POINTS))
    assert mean.error == pytest.approx(1 / math.sqrt(8 * MOST_POINTS), rel=0.1)
    assert mean.points == 8 * MOST_POINTS


@pytest.mark.parametrize(("values", "mean", "error"), [([], math.nan, math.nan), ([2.0], 2.0, math.nan)])
def test_too_few_values_have_no_error(values, mean, error):
    """Without two values nobody knows how well a mean is known."""
    found = mean_error(values)
    assert found.value == pytest.approx(mean, nan_ok=True)
    assert found.error == pytest.approx(error, nan_ok=True)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60))
def test_any_series_is_defined(values):
    """Whatever the values, nothing is raised, the mean lies between them and no error is negative."""
    mean = mean_error(values)
    finite = [value for value in values if math.isfinite(value)]
    assert mean.points == len(finite)
    assert not mean.error < 0
    if finite:
        slack = 1e-9 * max(map(abs, finite))
        assert min(finite) - slack <= mean.value <= max(finite) + slack


def test_equal_values_have_no_error():
    """A constant series has its mean for certain."""
    assert mean_error([0.1] * 50).error == pytest.approx(0, abs=1e-15)
    assert mean_error([0.0] * 50).error == 0
