from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.change_points import EXACT, LEVEL, MOST_BLOCKS, SHORTEST, SLOPE, change_points, noise

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def near(found, planted, margin=3):
    return len(found) == len(planted) and all(abs(a - b) <= margin for a, b in zip(found, planted, strict=True))


def levels(sizes, heights, seed=0):
    flat = np.repeat(np.asarray(heights, dtype=float), sizes)
    return flat + np.random.default_rng(seed).normal(0, 1, len(flat))


@pytest.mark.parametrize("seed", range(5))
def test_planted_shifts_are_found(seed):
    """Shifts of three standard deviations are found where they are, with their levels."""
    found = change_points(levels([100, 60, 140], [10, 13, 9], seed))
    assert near(found.indices, [100, 160])
    assert [change.kind for change in found.changes] == [LEVEL, LEVEL]
    assert found.changes[0].before == pytest.approx(10, abs=0.5)
    assert found.changes[0].after == pytest.approx(13, abs=0.6)
    assert found.changes[0].ratio == pytest.approx(0.3, abs=0.1)
    assert all(change.score >= 1 for change in found.changes)


@pytest.mark.parametrize("count", [EXACT + 1, 20_000, MOST_BLOCKS * 3 + 5])
def test_long_series_are_searched_like_short_ones(count):
    """A change in a long series is placed as exactly as in a short one."""
    values = np.random.default_rng(0).normal(0, 1, count)
    at = count * 2 // 3
    values[at:] += 4
    assert near(change_points(values).indices, [at], margin=1)


@pytest.mark.parametrize("count", [200, 1000, 5000])
def test_noise_has_no_changes(count):
    """Ten series of pure noise have none, and hardly any where neighbours have half in common."""
    false = 0
    for seed in range(10):
        values = np.random.default_rng(seed).normal(0, 1, count)
        assert change_points(values).indices == []
        kept = values.copy()
        for at in range(1, count):
            kept[at] += 0.5 * kept[at - 1]
        false += len(change_points(kept).indices)
    assert false <= 3


def test_outliers_are_no_changes():
    """One or two points far away are outliers."""
    values = levels([300], [0])
    values[[50, 200, 201]] = 40, -30, -35
    assert change_points(values).indices == []
    values[50] = 1e9
    values[150:] += 5
    assert change_points(values).indices == [150]
    assert change_points([1.0] * 20 + [7.0] + [1.0] * 20).indices == []


def test_bend_is_a_change_of_slope():
    """A line that bends has one change, of slope, and no staircase."""
    x = np.arange(400.0)
    values = np.where(x < 250, 0.1 * x, 25 - 0.1 * (x - 250)) + np.random.default_rng(0).normal(0, 1, 400)
    found = change_points(values)
    assert near(found.indices, [250], margin=10)
    assert found.changes[0].kind == SLOPE
    assert found.changes[0].before == pytest.approx(0.1, rel=0.1)
    assert found.changes[0].after == pytest.approx(-0.1, rel=0.1)


def test_ramp_is_no_change():
    """A steady rise is described by one line, with noise or without, however long."""
    assert change_points(np.arange(300.0)).indices == change_points(np.arange(200_000.0)).indices == []
    assert change_points(np.arange(500.0) + np.random.default_rng(0).normal(0, 1, 500)).indices == []


def test_noiseless_steps_are_exact():
    """Steps without any noise are found where they are."""
    assert change_points([0] * 30 + [1] * 30 + [0] * 30).indices == [30, 60]


def test_index_counts_what_is_not_finite():
    """Indices are those of the series as given, points left out included."""
    values = levels([100, 100], [0, 5])
    values[[3, 50, 70]] = math.nan, math.inf, -math.inf
    assert near(change_points(values).indices, [100], margin=1)


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * (2 * SHORTEST - 1), [math.nan] * 50])
def test_short_series_say_so(values):
    """Too few points are not enough data."""
    found = change_points(values)
    assert found.changes == ()
    assert "not enough data" in found.reason


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40))
@settings(deadline=None)
def test_nothing_raises_or_warns(values):
    """Whatever the numbers, there is a result without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = change_points(values)
    assert found.points == np.isfinite(values).sum()
    assert all(0 < index < len(values) for index in found.indices)


def test_noise_is_widened_for_memory():
    """The noise of a series with memory is that of its means, not of its points; jumps and slopes do not move it."""
    values = np.random.default_rng(0).normal(0, 1, 5000)
    assert noise(values) == pytest.approx(1, rel=0.1)
    jumps = values + np.repeat([0, 5, 0, 9, 3], 1000) + 0.01 * np.arange(5000)
    assert noise(jumps) == pytest.approx(1, rel=0.1)
    kept = values.copy()
    for at in range(1, 5000):
        kept[at] += 0.6 * kept[at - 1]
    assert noise(kept) == pytest.approx(1 / 0.4, rel=0.3)


def test_authors_changes_of_tigerbeetle_are_found():
    """The three clear shifts are found, the single drop at 10 is not one."""
    path = DATA / "changepoint-series" / "otava" / "tigerbeetle_series.json"
    if not path.is_file():
        pytest.skip("../shared/data/changepoint-series is not here")
    found = change_points(json.loads(path.read_text(encoding="utf-8"))).indices
    assert all(any(abs(at - known) <= 2 for at in found) for known in (16, 71, 96))
    assert not any(abs(at - 10) <= 2 for at in found)
