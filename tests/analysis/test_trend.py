from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.series.student import two_sided
from stepscope.analysis.series.trend import DECREASING, FLAT, INCREASING, UNKNOWN, trend, windowed

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.promise("S0-072")
@pytest.mark.parametrize("count", [3, 4, 17, 1000])
@pytest.mark.parametrize("origin", [0.0, 1.7e9])
def test_numbers_are_those_of_linregress(count, origin):
    """Slope, intercept, r², p and standard error equal scipy's, also for times since 1970."""
    stats = pytest.importorskip("scipy.stats", reason="scipy is the reference")
    random = np.random.default_rng(count)
    x = origin + np.cumsum(random.uniform(0.5, 1.5, count))
    y = 3.0 - 0.01 * (x - origin) + random.normal(0, 1, count)
    found, reference = trend(x, y), stats.linregress(x, y)
    assert found.slope == pytest.approx(reference.slope, rel=1e-6)
    assert found.intercept == pytest.approx(reference.intercept, rel=1e-6, abs=1e-6)
    assert found.r_squared == pytest.approx(reference.rvalue**2, rel=1e-6)
    assert found.p_value == pytest.approx(reference.pvalue, rel=1e-6)
    assert found.std_error == pytest.approx(reference.stderr, rel=1e-6)


@pytest.mark.parametrize("freedom", [1, 2, 5, 30, 1000, 1_000_000])
@pytest.mark.parametrize("t", [0.0, 1e-9, 0.3, 1.0, 2.5, 8.0, 40.0, 1e5])
def test_probability_is_students(t, freedom):
    """The two-sided probability equals scipy's over the whole range, both tails of it exact."""
    stats = pytest.importorskip("scipy.stats", reason="scipy is the reference")
    assert two_sided(-t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-6, abs=1e-300)


def test_probability_without_freedom_is_not_a_number():
    """What is not defined is NaN; what is certain is 0."""
    assert math.isnan(two_sided(1.0, 0))
    assert math.isnan(two_sided(math.nan, 3))
    assert two_sided(math.inf, 3) == 0.0
    assert two_sided(1.96, math.inf) == pytest.approx(0.05, abs=1e-4)


def test_direction_needs_significance():
    """A slope that chance may have made is flat."""
    x = np.arange(200)
    noise = np.random.default_rng(0).normal(0, 1, 200)
    assert trend(x, noise).direction == FLAT
    assert trend(x, noise + 0.05 * x).direction == INCREASING
    assert trend(x, noise - 0.05 * x).direction == DECREASING


def test_robust_slope_ignores_outliers():
    """A tenth of wild points turns least squares, not the robust slope, whose interval holds the truth."""
    random = np.random.default_rng(1)
    x = np.arange(500.0)
    y = -0.02 * x + random.normal(0, 0.5, 500)
    y[400:450] += 100
    found = trend(x, y)
    assert found.slope > 0
    assert found.robust_low <= -0.02 <= found.robust_high
    assert found.robust_slope == pytest.approx(-0.02, rel=0.2)


@pytest.mark.parametrize(
    ("x", "y", "direction"),
    [
        ([], [], UNKNOWN),
        ([1], [2], UNKNOWN),
        ([1, 1, 1], [1, 2, 3], UNKNOWN),
        ([1, 2, math.nan], [math.nan, 2, 3], UNKNOWN),
        ([1, 2], [3, 3], FLAT),
        ([1, 2], [3, 4], INCREASING),
        (range(5), [7.0] * 5, FLAT),
        ([3, 1, 2], [3, 1, 2], INCREASING),
        ([0, 1, 2], [-1e308, 0, 1e308], INCREASING),
    ],
)
def test_every_series_has_a_defined_trend(x, y, direction):
    """Empty, single, simultaneous, constant, unordered and huge points give a result and say what is missing."""
    found = trend(x, y)
    assert found.direction == direction
    assert ("not enough data" in found.reason) == (direction == UNKNOWN)


@given(st.lists(st.tuples(ANY_FLOAT, ANY_FLOAT), max_size=50))
def test_nothing_raises_or_warns(points):
    """Whatever the numbers, there is a result without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = trend([x for x, _ in points], [y for _, y in points])
    assert found.p_value is None or 0 <= found.p_value <= 1


def test_windows_show_warm_up_and_plateau():
    """Each part has its own trend: steep at the start, flat at the end."""
    x = np.arange(2000.0)
    parts = windowed(x, 10 * np.exp(-x / 100) + np.random.default_rng(0).normal(0, 0.01, 2000), 10)
    assert len(parts) == 10
    assert parts[0].slope < 100 * parts[-1].slope < 0 or parts[-1].direction == FLAT
    assert windowed([], [])[0].direction == UNKNOWN


def test_blocks_keep_the_robust_slope_of_a_real_loss():
    """The robust slope of 300 blocks is within 3 % of the one of all pairs, on the mixtral run's loss."""
    path = DATA / "megatron-golden" / "mixtral__mixtral_8x7b_alltoall_tp2pp4ep4_release"
    if not path.is_dir():
        pytest.skip("../shared/data/megatron-golden is not here")
    golden = json.loads((path / "golden_values_dev_dgx_h100.json").read_text(encoding="utf-8"))["lm loss"]["values"]
    steps = np.array([int(step) for step in golden], dtype=float)[1000:3000]
    loss = np.array([float(value) for value in golden.values()])[1000:3000]
    first, second = np.triu_indices(len(steps), 1)
    exact = np.median((loss[second] - loss[first]) / (steps[second] - steps[first]))
    assert trend(steps, loss).robust_slope == pytest.approx(exact, rel=0.03)
