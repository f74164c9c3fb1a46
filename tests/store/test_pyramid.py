from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.ring import NO_STEP
from stepscope.store import pyramid
from stepscope.store.points import NO_NS, Points
from stepscope.store.pyramid import COLUMNS, Blocks

INT64 = st.integers(-(2**63), 2**63 - 1)
POINT = st.tuples(
    st.floats() | st.sampled_from([1.0, 2.0, 0.0, -0.0, math.nan, math.inf, -math.inf]),
    INT64 | st.integers(0, 100),
    INT64 | st.integers(0, 100),
)
NS = st.lists(st.integers(0, 2**51), min_size=1, max_size=20)


def series(rows, ns=None) -> Points:
    """Make one series of (value, step, time)."""
    value, step, time = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    zeros = np.zeros(len(rows), dtype=np.int32)
    seq = np.arange(len(rows), dtype=np.int64)
    exact = np.full(len(rows), NO_NS, dtype=np.int64) if ns is None else np.array(ns, dtype=np.int64)
    whole = (np.array(column, dtype=np.int64) for column in (step, time))
    return Points(["a"], zeros, zeros, zeros, seq, *whole, np.array(value, dtype=float), exact)


def plain(rows) -> dict[str, object]:
    """Compute one block the long way."""
    finite = [row for row in rows if math.isfinite(row[0])]
    bad = next((row for row in rows if not math.isfinite(row[0])), None)
    low, high = (how(finite, key=lambda row: row[0], default=(math.nan, *rows[0][1:])) for how in (min, max))
    steps = [row[1] for row in rows if row[1] != NO_STEP] or [NO_STEP]
    times = [row[2] for row in rows]
    kinds = {"nan": pyramid.NAN, "inf": pyramid.POSITIVE_INFINITY, "-inf": pyramid.NEGATIVE_INFINITY}
    return {
        "count": len(rows),
        "nonfinite": len(rows) - len(finite),
        "first_step": rows[0][1],
        "last_step": rows[-1][1],
        "low_step": min(steps),
        "high_step": max(steps),
        "low_time": min(times),
        "high_time": max(times),
        "min": low[0],
        "max": high[0],
        "min_step": low[1],
        "max_step": high[1],
        "min_time": low[2],
        "max_time": high[2],
        "last": rows[-1][0],
        "bad_step": bad[1] if bad else rows[0][1],
        "bad_kind": kinds[str(bad[0])] if bad else 0,
    }


def same(left, right) -> bool:
    """Compare bit by bit, but take every NaN for the same."""
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype.kind != "f":
        return np.array_equal(left, right)
    return np.array_equal(left, right, equal_nan=True) and np.array_equal(
        np.signbit(left)[~np.isnan(left)], np.signbit(right)[~np.isnan(right)]
    )


@given(st.lists(POINT, min_size=1, max_size=30), st.sampled_from([1, 4, 64]))
def test_blocks_equal_a_plain_recomputation(rows, size):
    """Extremes, their places, counts and the first bad value are those of the points themselves."""
    blocks = pyramid.build(series(rows), size)
    expected = [plain(rows[at : at + size]) for at in range(0, len(rows), size)]
    for field in expected[0]:
        values = [block[field] for block in expected]
        assert same(getattr(blocks, field), np.array(values, dtype=getattr(blocks, field).dtype)), field


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_a_mean_lies_between_its_extremes(values):
    """The mean is that of exact arithmetic, up to rounding, even where the sum leaves the range of floats."""
    blocks = pyramid.build(series([(value, 0, 0) for value in values]), 64)
    scale = max(map(abs, values)) or 1.0
    assert blocks.min[0] <= blocks.mean[0] <= blocks.max[0]
    exact = math.fsum(value / scale for value in values) / len(values)
    assert blocks.mean[0] / scale == pytest.approx(exact, abs=1e-14 + 1e-300 / scale)


def test_a_constant_has_itself_as_mean():
    """No rounding shows where nothing varies."""
    blocks = pyramid.build(series([(3e-4, step, step) for step in range(64)]), 64)
    assert blocks.mean.tolist() == [3e-4]


@given(st.lists(POINT, min_size=1, max_size=30), st.sampled_from([1, 4, 64]))
def test_packing_loses_nothing(rows, size):
    """What is stored gives back every block, whatever the steps and times."""
    assert_packs(pyramid.build(series(rows), size))


@given(NS | st.lists(INT64.filter(lambda ns: ns != NO_NS), min_size=1, max_size=20))
def test_packed_durations_are_exact(durations):
    """Durations come back as the same seconds that their points have."""
    points = series([(ns / 1e9, 0, 0) for ns in durations], durations)
    blocks = pyramid.build(points, 4)
    assert blocks.in_ns.all()
    assert_packs(blocks)


def test_every_series_starts_its_own_block_and_short_ones_are_told():
    """Blocks never mix series; a series under 64 points counts as short."""
    points = series([(0.0, step, step) for step in range(64 + 63 + 130)])
    points = Points(["a", "b", "c"], np.repeat(np.arange(3, dtype=np.int32), [64, 63, 130]), *columns_after(points))
    blocks = pyramid.build(points, 64)
    assert blocks.name.tolist() == [0, 1, 2, 2, 2]
    assert blocks.count.tolist() == [64, 63, 64, 64, 2]
    assert np.flatnonzero(pyramid.short_series(points)).tolist() == list(range(64, 127))


def test_no_points_give_no_blocks():
    """Nothing in, nothing out."""
    assert len(pyramid.build(Points.empty(), 64)) == 0
    assert len(Blocks.concat([])) == 0


def test_concat_joins_tables_of_names():
    """Blocks of several readings keep their names."""
    one = pyramid.build(series([(1.0, 0, 0)]), 64)
    two = pyramid.build(Points(["b", "a"], *columns_of(series([(2.0, 0, 0)]))), 64)
    joined = Blocks.concat([one, two, one])
    assert [joined.names[code] for code in joined.name] == ["a", "b", "a"]


def columns_of(points):
    return points.name, *columns_after(points)


def columns_after(points):
    return points.rank, points.attempt, points.seq, points.step, points.time, points.value, points.ns


def assert_packs(blocks):
    back = pyramid.unpacked(blocks.names, pyramid.packed(blocks))
    for field in COLUMNS:
        assert same(getattr(back, field), getattr(blocks, field)), field
