from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.store.points import NO_NS, Points, distinct, in_order, series_starts, with_sorted_names

SMALL = st.tuples(st.sampled_from("cab"), st.integers(-2, 2), st.integers(0, 2), st.integers(0, 5))
WIDE = st.tuples(
    st.sampled_from("cab"),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
)


def points_of(keys: list[tuple[str, int, int, int]]) -> Points:
    """Make points of (name, rank, attempt, seq); the value is the position."""
    names, ranks, attempts, seqs = zip(*keys, strict=True) if keys else ((), (), (), ())
    table = sorted(set(names), reverse=True)
    whole = np.arange(len(keys), dtype=np.int64)
    return Points(
        table,
        np.array([table.index(name) for name in names], dtype=np.int32),
        np.array(ranks, dtype=np.int32),
        np.array(attempts, dtype=np.int32),
        np.array(seqs, dtype=np.int64),
        whole,
        whole,
        whole.astype(float),
        np.full(len(keys), NO_NS, dtype=np.int64),
    )


def keys_of(points: Points) -> list[tuple[str, int, int, int]]:
    """Return (name, rank, attempt, seq) of each point."""
    columns = (points.name, points.rank, points.attempt, points.seq)
    return [(points.names[name], *rest) for name, *rest in zip(*(column.tolist() for column in columns), strict=True)]


@given(st.lists(st.one_of(SMALL, WIDE), max_size=40))
def test_order_is_name_rank_attempt_seq(keys):
    """Points in order equal a plain stable sort of their keys."""
    points = in_order(with_sorted_names(points_of(keys)))
    expected = sorted(range(len(keys)), key=lambda index: keys[index])
    assert keys_of(points) == [keys[index] for index in expected]
    assert points.value.tolist() == expected


@given(st.lists(SMALL, max_size=40))
def test_distinct_keeps_the_first_of_each_key(keys):
    """A record that was read twice counts once."""
    points = distinct(with_sorted_names(points_of(keys)))
    assert keys_of(points) == sorted(set(keys))
    assert [keys.index(key) for key in keys_of(points)] == points.value.tolist()


@given(st.lists(st.lists(SMALL, max_size=10), max_size=4))
def test_concat_joins_tables_of_names(parts):
    """Joined points are those of the parts, one after the other."""
    joined = Points.concat([points_of(keys) for keys in parts])
    assert keys_of(joined) == [key for keys in parts for key in keys]
    assert len(set(joined.names)) == len(joined.names)


def test_select_takes_masks_positions_and_slices():
    """The three ways to select agree, and keep the table of names."""
    points = points_of([("a", 0, 0, 0), ("b", 0, 0, 1), ("a", 0, 0, 2)])
    for index in (np.array([True, False, True]), np.array([0, 2]), slice(None, None, 2)):
        assert keys_of(points.select(index)) == [("a", 0, 0, 0), ("a", 0, 0, 2)]


def test_series_start_where_name_rank_or_attempt_changes():
    """A run of one (name, rank, attempt) is one series."""
    points = points_of([("a", 0, 0, 0), ("a", 0, 0, 1), ("a", 1, 0, 0), ("a", 1, 1, 0), ("b", 1, 1, 0)])
    assert series_starts(points).tolist() == [0, 2, 3, 4]
    assert series_starts(Points.empty()).tolist() == []


def test_names_that_utf8_cannot_hold_are_replaced():
    """A lone surrogate becomes a question mark; names that then are equal share one entry."""
    points = with_sorted_names(points_of([("a\ud800", 0, 0, 0), ("a\udfff", 0, 0, 1)]))
    assert points.names == ["a?"]
    assert points.name.tolist() == [0, 0]


def test_columns_of_different_length_are_refused():
    """Columns that do not belong together raise at once."""
    good = points_of([("a", 0, 0, 0)])
    columns = (good.rank, good.attempt, good.seq, good.step, good.time, good.value)
    with pytest.raises(ValueError, match="differ in length"):
        Points(good.names, good.name, *columns, good.ns[:0])
