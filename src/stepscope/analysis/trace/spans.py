"""Spans of time and how they nest: which encloses which, which runs alone, and how many share a moment.

Every function takes and returns columns, exact in nanoseconds; none loops over events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.analysis.trace.window import Intervals
    from stepscope.core.arrays import AnyIntegers, Floats, Mask


NONE = -1
"""The parent of a span that no other encloses; the event of a thread that does nothing."""
BLOCK = 2**17
"""Spans that are processed together: these take some 20 MB."""


def parents(
    thread: AnyIntegers, start: AnyIntegers, end: AnyIntegers, rows: AnyIntegers | None = None
) -> NDArray[np.int32]:
    """Return for each span the innermost one of its thread that was running when it began; `NONE` if there is none.

    Only the beginning counts, because times rounded to microseconds let a child end after its parent. Spans come in the
    order of a trace: by start, outer before inner. They are processed in blocks to save memory; spans that are open at
    the end of a block continue in the next. With `rows`, only these rows count, and places count within them.
    """
    count = len(start) if rows is None else len(rows)
    found = np.full(count, NONE, dtype=np.int32)
    still_open: dict[int, NDArray[np.int32]] = {}
    for first in range(0, count, BLOCK):
        place = np.arange(first, min(first + BLOCK, count), dtype=np.int32)
        threads = thread[place if rows is None else rows[place]]
        for one in np.unique(threads).tolist():
            block = place[threads == one]
            block = np.concatenate([still_open[one], block]) if one in still_open else block
            row = block if rows is None else rows[block]
            inner = _parents_of_one(start[row], end[row])
            known = inner != NONE
            found[block[known]] = block[inner[known]]
            at, enclosing = len(inner) - 1, []
            while at != NONE:
                enclosing.append(at)
                at = int(inner[at])
            still_open[one] = block[enclosing[::-1]]
    return found


def _parents_of_one(start: AnyIntegers, end: AnyIntegers) -> NDArray[np.int32]:
    """Return the parents in one thread: each span asks the one before it, then the one which that one asks."""
    asked = np.arange(-1, len(start) - 1, dtype=np.int32)
    waiting = np.flatnonzero(asked != NONE).astype(np.int32)
    while len(waiting):
        waiting = waiting[end[asked[waiting]] <= start[waiting]]
        asked[waiting] = asked[asked[waiting]]
        waiting = waiting[asked[waiting] != NONE]
    return asked


def _ancestors(parent: AnyIntegers) -> Iterator[tuple[AnyIntegers, AnyIntegers]]:
    """Yield, level by level from the parents up, the spans that have an ancestor there, and these ancestors."""
    inside = np.flatnonzero(parent != NONE).astype(np.int32)
    above = parent[inside]
    while len(inside):
        yield inside, above
        further = parent[above] != NONE
        inside, above = inside[further], parent[above[further]]


def depths(parent: AnyIntegers) -> AnyIntegers:
    """Return how many spans enclose each."""
    depth = np.zeros(len(parent), dtype=np.int32)
    for inside, _ in _ancestors(parent):
        depth[inside] += 1
    return depth


def roots(parent: AnyIntegers) -> AnyIntegers:
    """Return the outermost span around each: itself if no other encloses it."""
    root = np.arange(len(parent), dtype=np.int64)
    for inside, above in _ancestors(parent):
        root[inside] = above
    return root


def own_time(start: AnyIntegers, end: AnyIntegers, parent: AnyIntegers) -> AnyIntegers:
    """Return each span's time without the parts of it that its direct children cover."""
    own: AnyIntegers = end - start
    inner = np.flatnonzero(parent != NONE)
    outer = parent[inner]
    np.subtract.at(own, outer, np.minimum(end[inner], end[outer]) - start[inner])
    return np.asarray(np.maximum(own, 0))


def with_children(value: AnyIntegers, parent: AnyIntegers, combine: np.ufunc = np.add) -> AnyIntegers:
    """Return each span's value combined with those of all spans inside it: by default their sum."""
    total: AnyIntegers = value.copy()
    depth = depths(parent)
    for level in range(int(depth.max(initial=0)), 0, -1):
        inner = np.flatnonzero(depth == level)
        combine.at(total, parent[inner], total[inner])
    return total


def outermost(label: AnyIntegers, parent: AnyIntegers) -> Mask:
    """Return which spans lie in no span of the same label: what a sum over a label may count once."""
    alone = np.ones(len(parent), dtype=np.bool_)
    for inside, above in _ancestors(parent):
        alone[inside] &= label[above] != label[inside]
    return alone


def inherited(mark: Mask, parent: AnyIntegers) -> Mask:
    """Return which spans are marked or lie in one that is."""
    marked: Mask = mark.copy()
    for inside, above in _ancestors(parent):
        marked[inside] |= mark[above]
    return marked


def alone(start: AnyIntegers, end: AnyIntegers, group: AnyIntegers, groups: int) -> AnyIntegers:
    """Return for each group the time in which it runs and no other group does: what its absence could save at most.

    Spans are ordered by start, and processed in blocks of time to save memory.
    """
    found = np.zeros(groups, dtype=np.int64)
    open_rows = np.zeros(0, dtype=np.int64)
    for first in range(0, len(start), BLOCK):
        last = min(first + BLOCK, len(start))
        low, high = start[first], start[last] if last < len(start) else np.iinfo(np.int64).max
        row = np.concatenate([open_rows, np.arange(first, last)])
        found += _alone(np.maximum(start[row], low), np.minimum(end[row], high), group[row].astype(np.int64), groups)
        open_rows = row[end[row] > high]
    return found


def _alone(start: AnyIntegers, end: AnyIntegers, group: AnyIntegers, groups: int) -> AnyIntegers:
    """All spans of a moment are of one group if and only if n·Σg² = (Σg)², which is exact in integers."""
    time, running = _running(start, end, np.stack([np.ones_like(group), group, group * group]))
    count, total, squares = running
    single = (count > 0) & (count * squares == total * total)
    group_of, width = total[single] // count[single], np.diff(time)[single]
    return np.bincount(group_of, weights=width, minlength=groups).astype(np.int64)


def shares(start: AnyIntegers, end: AnyIntegers) -> Floats:
    """Return each span's part of the time: a moment is divided evenly among the spans that run in it.

    The parts sum to the time in which anything runs.
    """
    time, (count,) = _running(start, end, np.ones((1, len(start)), dtype=np.int64))
    busy = np.divide(np.diff(time), count, out=np.zeros(len(count)), where=count > 0)
    clock = np.r_[0.0, np.cumsum(busy)]
    return np.asarray(clock[np.searchsorted(time, end)] - clock[np.searchsorted(time, start)], dtype=np.float64)


def covered(intervals: Intervals, at: AnyIntegers) -> AnyIntegers:
    """Return how much of the time before each moment the intervals cover."""
    if not len(intervals.start):
        return np.zeros(len(at), dtype=np.int64)
    place = np.searchsorted(intervals.start, at, side="right")
    sums = np.r_[0, np.cumsum(intervals.end - intervals.start)]
    over = np.maximum(intervals.end[np.maximum(place - 1, 0)] - at, 0)
    return np.asarray(sums[place] - np.where(place > 0, over, 0), dtype=np.int64)


@dataclass(frozen=True)
class SpanPieces:
    """What threads did, moment by moment: consecutive pieces of the innermost span, by thread and time."""

    thread: AnyIntegers
    start: AnyIntegers
    end: AnyIntegers
    event: AnyIntegers
    """The innermost span; `NONE` where the thread was in none."""

    def of(self, thread: int) -> SpanPieces:
        """Return those of one thread."""
        first, last = np.searchsorted(self.thread, [thread, thread + 1])
        return SpanPieces(*(column[first:last] for column in (self.thread, self.start, self.end, self.event)))


def pieces(thread: AnyIntegers, start: AnyIntegers, end: AnyIntegers, parent: AnyIntegers) -> SpanPieces:
    """Cut the time of each thread into pieces by the innermost span; between spans the thread is in none.

    A span that ends before one inside it, because times are rounded to microseconds, lasts until that one ends.
    """
    event = np.flatnonzero(end > start)
    ends, above, depth = with_children(end, parent, np.maximum)[event], parent[event], depths(parent)[event]
    threads, time = np.r_[thread[event], thread[event]], np.r_[start[event], ends]
    opens = np.repeat([1, 0], len(event))
    # At one moment the inner ends before the outer, and all ends before the outer begins before the inner.
    order = np.lexsort((np.r_[depth, -depth], opens, time, threads))
    threads, time, inner = threads[order], time[order], np.r_[event, above][order]
    real = np.flatnonzero((threads[1:] == threads[:-1]) & (time[1:] > time[:-1]))
    return SpanPieces(threads[real], time[real], time[real + 1], inner[real])


def _running(start: AnyIntegers, end: AnyIntegers, values: AnyIntegers) -> tuple[AnyIntegers, AnyIntegers]:
    """Return the moments at which anything begins or ends, and the sums of the values of what runs between them."""
    time = np.r_[start, end]
    order = np.argsort(time, kind="stable")
    running = np.cumsum(np.concatenate([values, -values], axis=1)[:, order], axis=1)
    return time[order], running[:, :-1]
