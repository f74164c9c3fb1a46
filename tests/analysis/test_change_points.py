from __future__ import annotations

import json
import math
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.series.change_points import EXACT, LEVEL, MOST_BLOCKS, SLOPE, change_points, noise

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


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [math.nan] * 50])
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


def seasonal(seed, count=240, period=12, shift=0.0, grows=0.0):
    """Return a season with noise, and perhaps a shift in the middle."""
    draw, place = np.random.default_rng(seed), np.arange(count)
    season = 3 * np.sin(2 * np.pi * place / period) * (1 + grows * place / count)
    return 100 + season + draw.normal(0, 0.5, count) + shift * (place >= count // 2)


@pytest.mark.parametrize("period", [7, 12, 24, 50])
@pytest.mark.parametrize("grows", [0.0, 2.0])
def test_a_season_is_no_change_and_hides_none(period, grows):
    """A season alone has no change, also one that grows; with a shift in it that one is found."""
    made = partial(seasonal, count=20 * period, period=period, grows=grows)
    assert sum(len(change_points(made(seed)).changes) for seed in range(8)) <= 1
    found = [change_points(made(seed, shift=8.0)) for seed in range(8)]
    assert sum(near(each.indices, [10 * period]) for each in found) >= 7
    assert all("without a season of" in each.reason for each in found)


def lasting(seed, share, count=300, shift=0.0):
    """Return noise whose neighbours have a share in common; 1 is a random walk."""
    noise = np.random.default_rng(seed).normal(0, 1, count)
    for at in range(1, count):
        noise[at] += share * noise[at - 1]
    return noise + shift * (np.arange(count) >= count // 2)


@pytest.mark.parametrize(("share", "shift"), [(0.8, 12.0), (0.95, 20.0), (1.0, 40.0)])
def test_noise_that_lasts_is_no_change_and_hides_no_large_one(share, shift):
    """What wanders has next to no changes; a jump far beyond its steps is found at its place."""
    counts = [len(change_points(lasting(seed, share)).changes) for seed in range(20)]
    assert sum(counts) <= 4
    found = [change_points(lasting(seed, share, shift=shift)).indices for seed in range(20)]
    assert sum(near(each, [150]) for each in found) >= 16


def test_a_level_that_returns_is_a_change_each_time():
    """Levels of 90 points that alternate are changes, not a season."""
    value = np.tile(np.repeat([0.0, 6.0], 90), 4) + np.random.default_rng(0).normal(0, 1, 720)
    assert near(change_points(value).indices, list(range(90, 720, 90)))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([100, 101, 135], "one step of +34.3 % at point 3, seen once"),
        ([100, 101, 100.5, 99.8, 135], "one step of +34.6 % at point 5, seen once"),
        ([2.0, 2.02, 1.99, math.nan, 1.5, 1.51, 1.49], "one step of -25.1 % at point 5, seen in 3 points"),
        ([0, 0, 0, 1], "one step of +1 at point 4, seen once"),
    ],
)
def test_a_short_history_tells_one_large_step(values, reason):
    """Three to seven points tell a step that is far larger than everything else in them, and how often it was seen."""
    found = change_points(values)
    assert found.reason == reason
    assert [change.kind for change in found.changes] == [LEVEL]


@pytest.mark.parametrize(
    "values",
    [
        [100, 103, 98, 104, 101],
        [1, 2, 3, 4, 5, 6, 7],
        [100, 100.2, 100.1, 150, 100.3],
        [100, 100, 100, 101],
        [10, 9, 8, 7, 5],
        [5, 5, 5],
    ],
)
def test_a_short_history_of_noise_drift_or_one_outlier_tells_none(values):
    """Noise, a drift, an outlier that is over and a step below 3 % are no step."""
    assert change_points(values).changes == ()


def test_short_histories_of_noise_hardly_ever_tell_a_step():
    """Of 500 histories of one level with 1 % noise fewer than 2 % tell one."""
    draw = np.random.default_rng(0)
    told = sum(len(change_points(draw.normal(100, 1, 3 + at % 5)).changes) for at in range(500))
    assert told < 10
