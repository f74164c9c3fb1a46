from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.trace import spans
from stepscope.analysis.trace.window import union


def ints(*values):
    return np.array(values, dtype=np.int64)


SPANS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 20)).map(
        lambda one: (one[0], one[1], one[1] + one[2])
    ),
    max_size=25,
)


def columns(listed):
    """Return thread, start and end in the order of a trace."""
    ordered = sorted(listed, key=lambda one: (one[1], -one[2]))
    return (ints(*(one[place] for one in ordered)) for place in range(3))


@given(SPANS, st.sampled_from([2, 3, 7, 1000]))
def test_a_parent_is_the_innermost_span_of_the_thread_that_was_running(listed, block):
    """The doubling search finds the same parents as looking at every span before, in blocks of any size."""
    thread, start, end = columns(listed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "BLOCK", block)
        found = spans.parents(thread, start, end)
    order = np.lexsort((-end, start, thread)).tolist()
    for place, one in enumerate(order):
        before = [other for other in order[:place] if thread[other] == thread[one] and end[other] > start[one]]
        assert found[one] == (before[-1] if before else spans.NONE)


def test_a_child_that_ends_after_its_parent_is_still_its_child():
    """Times cut to microseconds do that."""
    assert spans.parents(ints(1, 1, 1), ints(0, 4, 10), ints(10, 11, 12)).tolist() == [-1, 0, 1]


def test_own_time_is_without_children():
    """Own time counts what lies in no direct child, and no more than a span has."""
    start, end = ints(0, 2, 3), ints(10, 6, 5)
    parent = spans.parents(ints(1, 1, 1), start, end)
    assert spans.own_time(start, end, parent).tolist() == [6, 2, 2]
    assert spans.with_children(ints(1, 10, 100), parent).tolist() == [111, 110, 100]
    assert spans.depths(parent).tolist() == [0, 1, 2]
    assert spans.roots(parent).tolist() == [0, 0, 0]
    assert spans.outermost(ints(5, 6, 5), parent).tolist() == [True, True, False]
    assert spans.inherited(np.array([False, True, False]), parent).tolist() == [False, True, True]


@given(SPANS)
def test_the_shares_of_all_spans_sum_to_the_busy_time(listed):
    """Every busy moment is given out exactly once."""
    _, start, end = columns(listed)
    busy = union(start, end)
    assert np.isclose(spans.shares(start, end).sum(), (busy.end - busy.start).sum())


@given(SPANS, st.sampled_from([2, 5, 1000]))
def test_time_alone_equals_what_the_union_loses_without_the_group(listed, block):
    """The sum-of-squares test says the same as taking each group out, in blocks of any size."""
    group, start, end = columns(listed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "BLOCK", block)
        alone = spans.alone(start, end, group, 3)
    whole = union(start, end)
    for one in range(3):
        rest = union(start[group != one], end[group != one])
        assert alone[one] == (whole.end - whole.start).sum() - (rest.end - rest.start).sum()


@given(SPANS)
def test_pieces_cover_each_thread_from_first_to_last_without_overlap(listed):
    """What a thread does is one thing at a time, and gaps are said."""
    thread, start, end = columns(listed)
    found = spans.pieces(thread, start, end, spans.parents(thread, start, end))
    for one in np.unique(thread).tolist():
        own = found.of(one)
        assert (own.start[1:] == own.end[:-1]).all()
        busy = union(start[thread == one], end[thread == one])
        assert (own.end - own.start)[own.event != spans.NONE].sum() == (busy.end - busy.start).sum()


def test_pieces_name_the_innermost():
    """An operator goes on where the one inside it ends."""
    start, end = ints(0, 2, 20), ints(10, 5, 30)
    found = spans.pieces(ints(1, 1, 1), start, end, spans.parents(ints(1, 1, 1), start, end))
    assert list(zip(found.start.tolist(), found.end.tolist(), found.event.tolist(), strict=True)) == [
        (0, 2, 0),
        (2, 5, 1),
        (5, 10, 0),
        (10, 20, -1),
        (20, 30, 2),
    ]


def test_covered_time_grows_only_inside_the_intervals():
    """Time before the first interval is none, and after the last it is all."""
    busy = union(ints(10, 30), ints(20, 35))
    assert spans.covered(busy, ints(0, 10, 15, 25, 32, 99)).tolist() == [0, 0, 5, 10, 12, 15]
    assert spans.covered(union(ints(), ints()), ints(3)).tolist() == [0]
