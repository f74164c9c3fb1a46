"""The last points of one series, in bounded memory: arrays that grow at one end and are cut at the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.alerts.rules.expression import MOST_POINTS

if TYPE_CHECKING:
    from stepscope.core.arrays import Floats


HEAD, SMALLEST = 256, 64
"""First points of a series that are kept for `first()`, and points that a new window has room for."""


class Need(NamedTuple):
    """How much of a series is read before its newest points; the maximum of all that is given."""

    points: int = 1
    seconds: float = 0.0
    steps: float = 0.0
    head: bool = False
    """The first points of the run, too."""

    def both(self, other: Need) -> Need:
        """Return the need that covers both."""
        return Need._make(map(max, self, other))


class SeriesWindow:
    """The newest points of a series, as many as are needed, and its first values."""

    def __init__(self, need: Need) -> None:
        """Start empty; `need` is how much to keep."""
        self.need = need
        self.total = 0
        """Points that have ever come."""
        self.began = self.first_step = np.nan
        """Time and step of the first point."""
        self.last_step, self.last_time = np.nan, -np.inf
        """Of the newest point."""
        self.fresh = 0
        """Points that no rule has read yet; the store resets it."""
        self.axis = 0
        """Equal for series whose points came in the same rows and so have the same times and steps."""
        self.highest, self.lowest = -np.inf, np.inf
        self._end = 0
        self._data = np.empty((3, SMALLEST))
        self._head: list[float] = []

    def __len__(self) -> int:
        """Return how many points are stored."""
        return self._end

    def extend(self, step: Floats, time: Floats, value: Floats, axis: int) -> None:
        """Append new points, in order; `axis` identifies the rows that they came in."""
        count = len(value)
        if not count:
            return
        if not self.total:
            self.began, self.first_step = float(time[0]), float(step[0])
        if time[0] < self.last_time or (count > 1 and (time[1:] < time[:-1]).any()):  # a device returned it late
            time = np.maximum(np.maximum.accumulate(time), self.last_time)
        self.last_step, self.last_time = float(step[-1]), float(time[-1])
        if self._end + count > self._data.shape[1]:
            self._make_room(count)
        places = slice(self._end, self._end + count)
        data = self._data
        data[0, places], data[1, places], data[2, places] = step, time, value
        if self.need.head and len(self._head) < HEAD:
            self._head += value[: HEAD - len(self._head)].tolist()
        self._end += count
        self.total += count
        self.fresh += count
        self.axis = hash((self.axis, axis))

    def _make_room(self, count: int) -> None:
        """Drop points that nothing reads any more, and allocate more room if that is not enough."""
        kept = min(len(self), MOST_POINTS, self._needed() + self.fresh)
        leaving = self._data[2, : self._end - kept]
        leaving = leaving[np.isfinite(leaving)]
        if len(leaving):
            self.highest = max(self.highest, float(leaving.max()))
            self.lowest = min(self.lowest, float(leaving.min()))
        old = self._data[:, self._end - kept : self._end]
        size = self._data.shape[1]
        while size < 2 * (kept + count):
            size *= 2
        while size > max(SMALLEST, 4 * (kept + count)):
            size //= 2
        data = np.empty((3, size))
        data[:, :kept] = old
        self._data, self._end = data, kept

    def _needed(self) -> int:
        """Return how many of the points may still be read."""
        found = self.need.points
        for axis, size in ((self.time, self.need.seconds), (self.step, self.need.steps)):
            if size and len(self):
                since = axis[-1 - self.fresh if self.fresh < len(self) else 0] - size
                found = max(found, len(self) - self.fresh - int(np.searchsorted(axis, since)))
        return found

    @property
    def step(self) -> Floats:
        """Steps; NaN where a point belongs to none."""
        return self._data[0, : self._end]

    @property
    def time(self) -> Floats:
        """Seconds since 1970."""
        return self._data[1, : self._end]

    @property
    def value(self) -> Floats:
        """Values."""
        return self._data[2, : self._end]

    @property
    def head(self) -> Floats:
        """The first values of the run, as many as are kept."""
        return np.asarray(self._head, dtype=np.float64)
