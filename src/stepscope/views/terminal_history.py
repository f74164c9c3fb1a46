"""The history of one metric in bounded memory: buckets on a grid that grows coarser as it fills.

A bucket keeps the lowest and highest point and counts non-finite ones, so that no spike and no NaN is lost on any grid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from stepscope.core.arrays import Floats, Integers, Mask


ROOM = 1024
"""Buckets of a history: two for each column of a very wide terminal, and a few to spare."""


class HistoryBuckets(NamedTuple):
    """Points of one metric, or buckets of them: columns of equal length. A single point is a bucket of one."""

    x: Floats
    low: Floats
    high: Floats
    mean: Floats
    """Over the finite points; NaN, as the two before, where there are none."""
    finite: Integers
    """Finite points."""
    bad: Integers
    """Points that are not finite."""
    attempt: Integers

    @classmethod
    def of_points(cls, x: Floats, value: Floats, attempt: Integers) -> HistoryBuckets:
        """Return a bucket for each point."""
        fine = np.isfinite(value)
        clean = np.where(fine, value, np.nan)
        return cls(x, clean, clean, clean, fine.astype(np.int64), (~fine).astype(np.int64), attempt)


class HistoryColumns(NamedTuple):
    """A history mapped to columns, ready to draw."""

    low: Floats
    """NaN for a column without finite points."""
    high: Floats
    mean: Floats
    bad: Mask
    """Whether the column holds a point that is not finite."""
    first: float
    """x of the first column's left edge."""
    last: float
    """x of the last column's right edge."""


class History:
    """The buckets of one metric over its steps, or over time.

    If an attempt repeats steps, the newer values replace the older ones.
    """

    def __init__(self, width: float = 1.0) -> None:
        """Start empty; a bucket spans `width` on the axis until there are too many."""
        self._width = width
        self._start = 0
        """Number of the first bucket: its left edge is `start * width`."""
        self._low: Floats = np.empty(0)
        self._high: Floats = np.empty(0)
        self._sum: Floats = np.empty(0)
        self._count: Integers = np.empty(0, np.int64)
        self._bad: Integers = np.empty(0, np.int64)
        self._attempt: Integers = np.empty(0, np.int64)
        self.last: float | None = None
        """The newest value, finite or not."""
        self.lowest: float | None = None
        self.highest: float | None = None
        self.points = 0
        """Number of points in all buckets."""

    def __len__(self) -> int:
        """Return the number of buckets."""
        return len(self._low)

    def add(self, new: HistoryBuckets, last: float | None = None) -> None:
        """Add points or buckets, in recorded order; `last` is the newest value if it is not that of the last bucket."""
        size = len(new.x)
        if not size:
            return
        self.points += int(new.finite.sum() + new.bad.sum())
        if last is None:
            last = float(new.mean[-1]) if new.finite[-1] else float("nan")
        self.last = last
        some = new.finite > 0
        if some.any():
            low, high = float(new.low[some].min()), float(new.high[some].max())
            self.lowest = low if self.lowest is None else min(low, self.lowest)
            self.highest = high if self.highest is None else max(high, self.highest)
        self._make_room(float(new.x.min()), float(new.x.max()))
        place = (np.floor(new.x / self._width) - self._start).astype(np.int64)
        newest = int(new.attempt.max())
        for attempt in np.unique(new.attempt).tolist() if newest else (0,):
            self._put(place, new, attempt)

    def _make_room(self, first: float, final: float) -> None:
        """Extend the grid from `first` to `final`, coarser if needed."""
        if len(self._low):
            first = min(first, self._start * self._width)
            final = max(final, (self._start + len(self._low) - 1) * self._width)
        while final // self._width - first // self._width >= ROOM:
            self._halve()
        start, end = int(first // self._width), int(final // self._width) + 1
        if not len(self._low):
            self._start = start
        before, after = self._start - start, end - self._start - len(self._low)
        if before > 0 or after > 0:
            columns = self._padded(max(0, before), max(0, after))
            self._low, self._high, self._sum, self._count, self._bad, self._attempt = columns
            self._start = min(self._start, start)

    def _padded(self, before: int, after: int) -> list[Any]:
        columns = (self._low, self._high, self._sum, self._count, self._bad, self._attempt)
        pairs = zip(columns, (np.nan, np.nan, 0, 0, 0, -1), strict=True)
        return [np.pad(column, (before, after), constant_values=empty) for column, empty in pairs]

    def _halve(self) -> None:
        """Join every two neighbors."""
        self._width *= 2
        if not len(self._low):
            return
        front = self._start % 2
        low, high, total, count, bad, attempt = self._padded(front, (len(self._low) + front) % 2)
        self._start = (self._start - front) // 2
        self._low, self._high = np.fmin(low[::2], low[1::2]), np.fmax(high[::2], high[1::2])
        self._sum, self._count = total[::2] + total[1::2], count[::2] + count[1::2]
        self._bad, self._attempt = bad[::2] + bad[1::2], np.maximum(attempt[::2], attempt[1::2])

    def _put(self, place: Integers, new: HistoryBuckets, attempt: int) -> None:
        own = new.attempt == attempt
        keep = own & (self._attempt[place] <= attempt)
        if not keep.any():
            return
        at = place[keep]
        old = np.unique(at[self._attempt[at] < attempt])
        self._low[old] = self._high[old] = np.nan
        self._sum[old], self._count[old], self._bad[old] = 0.0, 0, 0
        self._attempt[at] = attempt
        np.fmin.at(self._low, at, new.low[keep])
        np.fmax.at(self._high, at, new.high[keep])
        np.add.at(self._sum, at, np.where(new.finite[keep] > 0, new.mean[keep] * new.finite[keep], 0.0))
        np.add.at(self._count, at, new.finite[keep])
        np.add.at(self._bad, at, new.bad[keep])

    def columns(self, number: int, since: float | None = None) -> HistoryColumns | None:
        """Return the history on this many columns, from `since` on; None if it is empty.

        A short history fills all columns: a column without its own bucket repeats its neighbor.
        """
        skip = 0 if since is None else max(0, int(since // self._width) - self._start)
        low, high, total = self._low[skip:], self._high[skip:], self._sum[skip:]
        size = len(low)
        if not size or number < 1:
            return None
        count, bad = self._count[skip:], self._bad[skip:]
        first = (self._start + skip) * self._width
        last = first + size * self._width
        if size <= number:
            pick = np.arange(number) * size // number
            mean = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
            return HistoryColumns(low[pick], high[pick], mean[pick], bad[pick] > 0, first, last)
        starts = np.unique(np.arange(number) * size // number)
        counts = np.add.reduceat(count, starts)
        sums = np.add.reduceat(total, starts)
        mean = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
        wrong = np.add.reduceat(bad, starts) > 0
        return HistoryColumns(np.fmin.reduceat(low, starts), np.fmax.reduceat(high, starts), mean, wrong, first, last)

    def rows(self) -> list[dict[str, float | int | None]]:
        """Return the non-empty buckets as plain data."""
        found = []
        for place in np.flatnonzero((self._count > 0) | (self._bad > 0)).tolist():
            count = int(self._count[place])
            found.append(
                {
                    "x": (self._start + place) * self._width,
                    "min": float(self._low[place]) if count else None,
                    "max": float(self._high[place]) if count else None,
                    "mean": float(self._sum[place]) / count if count else None,
                    "count": count + int(self._bad[place]),
                    "nonfinite": int(self._bad[place]),
                }
            )
        return found
