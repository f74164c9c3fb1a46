from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.core.ring import NO_STEP
from stepscope.store import series as shapes
from stepscope.store.points import NO_NS, Points, in_order
from stepscope.store.pyramid import build

VALUE = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1e308, -1e308, math.nan, math.inf])
STEP = st.integers(-5, 50) | st.just(NO_STEP)
ROW = st.tuples(st.integers(0, 2), st.integers(0, 1), STEP, VALUE)


def points_of(rows):
    """Make points of one name of (rank, attempt, step, value); the sequence is that of the list."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * 4
    count = len(rows)
    return in_order(
        Points(
            ["a"],
            np.zeros(count, np.int32),
            np.array(columns[0], np.int32),
            np.array(columns[1], np.int32),
            np.arange(count, dtype=np.int64),
            np.array(columns[2], np.int64),
            np.arange(count, dtype=np.int64) * 1_000_000,
            np.array(columns[3], np.float64),
            np.full(count, NO_NS, np.int64),
        )
    )


def raw_buckets(points, starts):
    """Return count, nonfinite, min, max, last of each bucket by a plain scan."""
    found = []
    for start, end in zip(starts, [*starts[1:], len(points)], strict=True):
        value = points.value[start:end]
        finite = value[np.isfinite(value)]
        low, high = (finite.min(), finite.max()) if len(finite) else (math.nan, math.nan)
        found.append((end - start, len(value) - len(finite), low, high, value[-1]))
    return found


def figures(blocks):
    columns = (blocks.count, blocks.nonfinite, blocks.min, blocks.max, blocks.last)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def same(left, right):
    return np.array_equal(np.array(left, float).reshape(-1), np.array(right, float).reshape(-1), equal_nan=True)


def starts_of(blocks):
    return np.concatenate(([0], np.cumsum(blocks.count)[:-1])).astype(int).tolist() if len(blocks) else []


def check_against_raw(points, blocks):
    """Compare every figure of the buckets with a scan over the same points."""
    assert int(blocks.count.sum()) == len(points)
    starts = starts_of(blocks)
    assert same(figures(blocks), raw_buckets(points, starts))
    for at, (start, count) in enumerate(zip(starts, blocks.count.tolist(), strict=True)):
        part = points.select(slice(start, start + count))
        assert len(set(part.rank.tolist())) == len(set(part.attempt.tolist())) == 1
        finite = part.value[np.isfinite(part.value)]
        if len(finite):
            assert finite.min() <= blocks.mean[at] <= finite.max()
            with np.errstate(over="ignore"):
                true = finite.mean()
            room = np.abs(finite).max() * 1e-9  # sums in another order: what cancels out leaves its last digits
            assert not np.isfinite(true) or abs(blocks.mean[at] - true) <= room
        else:
            assert np.isnan(blocks.mean[at])


@settings(max_examples=150)
@given(st.lists(ROW, min_size=1, max_size=120), st.integers(0, 40))
def test_buckets_are_the_raw_scan(rows, buckets):
    """Buckets over any points have the figures of a plain scan over the same points."""
    points = points_of(rows)
    found = shapes.bucket_points(points, buckets)
    check_against_raw(points, found)
    assert found.count.min() >= 1


@settings(max_examples=150)
@given(st.lists(ROW, min_size=1, max_size=120), st.integers(1, 5), st.integers(1, 20))
def test_merged_blocks_are_the_raw_scan(rows, size, buckets):
    """Blocks of the pyramid that are joined have the figures of a plain scan over their points."""
    points = points_of(rows)
    merged = shapes.merge(build(points, size), buckets)
    check_against_raw(points, merged)
    groups = len({(rank, attempt) for rank, attempt, _, _ in rows})
    assert len(merged) <= buckets + groups


def shown_as(value):
    return "nan" if math.isnan(value) else value


@settings(max_examples=150)
@given(st.lists(ROW, min_size=1, max_size=120), st.integers(1, 20))
def test_extremes_stay_visible(rows, buckets):
    """A downsampled series holds real points: the lowest, highest, last and first non-finite one of each bucket."""
    points = points_of(rows)
    blocks = shapes.bucket_points(points, buckets)
    found = shapes.from_blocks("a", blocks)
    columns = (found.rank, found.attempt, found.step, found.value)
    shown = [(*key, shown_as(value)) for *key, value in zip(*(column.tolist() for column in columns), strict=True)]
    assert set(shown) <= {(rank, attempt, step, shown_as(value)) for rank, attempt, step, value in rows}
    for start, count in zip(starts_of(blocks), blocks.count.tolist(), strict=True):
        part = points.select(slice(start, start + count))
        bad = part.value[~np.isfinite(part.value)]
        finite = part.value[np.isfinite(part.value)]
        wanted = [part.value[-1], *bad[:1], *([finite.min(), finite.max()] if len(finite) else [])]
        here = {value for rank, attempt, _, value in shown if (rank, attempt) == (part.rank[0], part.attempt[0])}
        assert {shown_as(value) for value in wanted} <= here
    assert len(found) <= 4 * len(blocks)


@given(st.integers(100, 3000), st.integers(1, 50), st.data())
def test_planted_spikes(length, buckets, data):
    """However long a series and however few the buckets, a planted spike and a NaN are visible at their steps."""
    value = np.sin(np.arange(length) / 50)
    high, low, bad = (data.draw(st.integers(0, length - 1)) for _ in range(3))
    value[low], value[high], value[bad] = -50.0, 99.0, math.nan
    points = points_of([(0, 0, step, number) for step, number in enumerate(value.tolist())])
    found = shapes.from_blocks("a", shapes.bucket_points(points, buckets))
    shown = dict(zip(found.step.tolist(), found.value.tolist(), strict=True))
    assert math.isnan(shown[bad])
    assert high == bad or shown[high] == 99.0
    assert low in (bad, high) or shown[low] == -50.0
    assert found.step.tolist() == sorted(found.step.tolist())


def test_time_is_seconds():
    """A series tells time in seconds since 1970, and keeps the order of its points."""
    found = shapes.whole("a", points_of([(0, 0, 5, 1.0), (0, 0, 3, 2.0)]))
    assert (found.time.tolist(), found.step.tolist(), len(found)) == ([0.0, 1.0], [5, 3], 2)


def test_nothing_at_all():
    """A series without points is empty, downsampled or not, and its figures are absent."""
    empty = points_of([])
    assert len(shapes.whole("a", empty)) == 0
    assert len(shapes.from_blocks("a", shapes.bucket_points(empty, 10))) == 0
    assert shapes.summarize(np.empty(0)) == {
        "count": 0,
        "mean": None,
        "std": None,
        "min": None,
        "max": None,
        "p50": None,
        "p95": None,
        "p99": None,
        "last": None,
        "nonfinite": 0,
    }


@pytest.mark.promise("S4-020")
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_summary_is_what_it_says(values):
    """The standard deviation is that of the population, percentiles are linear, last is the last."""
    found = shapes.summarize(np.array(values))
    mean = math.fsum(values) / len(values)
    assert found["mean"] == pytest.approx(mean, abs=1e-6)
    assert found["std"] == pytest.approx(
        math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)), abs=1e-4
    )
    assert (found["min"], found["max"], found["last"], found["count"]) == (
        min(values),
        max(values),
        values[-1],
        len(values),
    )
    assert found["p50"] == pytest.approx(np.median(values))


def test_summary_leaves_out_what_is_not_finite():
    """Figures are over the finite values; the others are counted, and the last one is shown as it is."""
    found = shapes.summarize(np.array([1.0, math.nan, 3.0, math.inf, -math.inf]))
    assert (found["count"], found["nonfinite"], found["mean"], found["max"], found["last"]) == (
        5,
        3,
        2.0,
        3.0,
        -math.inf,
    )
    assert shapes.summarize(np.array([math.nan]))["mean"] is None
