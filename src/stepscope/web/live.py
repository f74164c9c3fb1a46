"""Live runs: what is new in a run since a page last asked, encoded once for all pages that look at it.

There is no timer and no push: the first question after a pause makes the next frame, the others get the same bytes. A
run that nobody asks for costs nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.store.curves import spans, thinned
from stepscope.store.following import Follower
from stepscope.store.layout import RunFolder
from stepscope.store.pyramid import Blocks, build
from stepscope.store.reader import Past
from stepscope.views.curve_message import encode_frame
from stepscope.views.event_count import EventCount
from stepscope.views.pace import STEP, pace_of
from stepscope.views.run_card import EPOCH, card_of
from stepscope.views.status import status

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb
    from numpy.typing import NDArray

    from stepscope.store.points import Points

PACE = 0.2
"""Seconds between two looks at a run, however many pages ask."""
ROWS = 8
"""Buckets of one curve in one frame."""
FRAMES = 240
"""Frames that are kept for pages that fell behind: two minutes of questions at 2 Hz."""
MOST_BYTES = 1 << 23
"""Bytes of the frames of one run."""
IDLE = 60.0
"""Seconds without a question after which a run is no longer followed."""
CHANNELS = 64
"""Runs that are followed at a time."""
WINDOW = 30.0
"""Seconds of steps that the time left is told from."""


class BehindError(Exception):
    """The cursor is older than what is kept: start over."""


class Channel:
    """One run that is followed."""

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection) -> None:
        """Begin at what is there now.

        Raises:
            StepscopeError: there is no run that can be read.
        """
        self._folder = RunFolder(path)
        self._lock = threading.Lock()
        self._follower = Follower(self._folder)
        self._events = EventCount(self._folder)
        past = Past(self._folder, connection)
        names = past.names()
        self._facts = {**card_of(past, names), "names": len(names)}
        self._names = set(names)
        self._pace, self._recent = pace_of(past), deque[tuple[float, int]]()
        self._begin()
        self.asked = time.monotonic()

    def _begin(self) -> None:
        """Make every cursor that was given out invalid, and number the curves anew."""
        self._generation = os.urandom(4).hex()
        self._table: dict[tuple[str, int, int], int] = {}
        self._frames: deque[tuple[int, bytes]] = deque()
        self._number = 0
        self._bytes = 0
        self._told: dict[str, Any] = {}
        self._looked = 0.0

    @property
    def cursor(self) -> str:
        """Where a page stands that has seen everything."""
        return f"{self._generation}-{self._number}"

    def hello(self) -> dict[str, Any]:
        """Return the cursor, the numbers of the curves so far, and how the run stands."""
        self.asked = time.monotonic()
        self.look()
        with self._lock:
            curves = [[number, *key] for key, number in self._table.items()]
            return {"cursor": self.cursor, "curves": curves, "status": self._status()}

    def since(self, cursor: str) -> bytes | None:
        """Return the frames after a cursor; None if there is none.

        Raises:
            BehindError: the cursor is too old, or of another time.
        """
        self.asked = time.monotonic()
        generation, _, number = cursor.partition("-")
        with self._lock:
            first = self._frames[0][0] if self._frames else self._number + 1
            if generation != self._generation or not number.isdecimal() or int(number) + 1 < first:
                raise BehindError
            if int(number) >= self._number:
                return None
            return b"".join(data for at, data in self._frames if at > int(number))

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed for another look."""
        return time.monotonic() - self._looked >= PACE

    def look(self) -> None:
        """Look for new points and for how the run stands; make a frame if anything changed."""
        with self._lock:
            if not self.is_due:
                return
            points = self._follower.look()
            if self._follower.missed:
                self._follower.missed = False
                self._begin()
            self._looked = time.monotonic()
            self._learn(points)
            told = self._status()
            same = {key: value for key, value in told.items() if key != "now"} == self._told
            if not len(points) and same:
                return
            self._told = {key: value for key, value in told.items() if key != "now"}
            self._add(points, told)

    def close(self) -> None:
        """Close the files."""
        self._follower.close()

    def _status(self) -> dict[str, Any]:
        return status(self._folder, self._facts, self._events)

    def _add(self, points: Points, told: dict[str, Any]) -> None:
        rows = few(points)
        curve, new = self._numbered(rows)
        self._number += 1
        head = {"frame": self._number, "cursor": self.cursor, "new": new, "status": told}
        data = encode_frame(head, rows, curve)
        self._frames.append((self._number, data))
        self._bytes += len(data)
        while len(self._frames) > FRAMES or self._bytes > MOST_BYTES:
            self._bytes -= len(self._frames.popleft()[1])

    def _numbered(self, rows: Blocks) -> tuple[NDArray[np.uint32], list[list[Any]]]:
        """Return the number of each row's curve, and the curves that have none yet."""
        numbers = np.zeros(len(rows), np.uint32)
        new: list[list[Any]] = []
        for first, last in spans(rows):
            key = (rows.names[int(rows.name[first])], int(rows.rank[first]), int(rows.attempt[first]))
            if key not in self._table:
                self._table[key] = len(self._table)
                new.append([self._table[key], *key])
            numbers[first:last] = self._table[key]
        return numbers, new

    def _learn(self, points: Points) -> None:
        """Take from the points what the status says: how many metrics there are, the epoch, the speed."""
        if not len(points):
            return
        used = {points.names[code] for code in np.unique(points.name).tolist()}
        self._names |= used
        self._facts["names"] = len(self._names)
        if EPOCH in used:
            epoch = points.value[points.name == points.names.index(EPOCH)]
            if np.isfinite(epoch[-1]):
                self._facts["epoch"] = float(epoch[-1])
        if STEP in used:
            self._pace.take(points)
            self._facts["rate"] = self._pace.rates().steps_per_second
            self._clock(points.select(points.name == points.names.index(STEP)))

    def _clock(self, steps: Points) -> None:
        """Tell the present speed, for the time left, from how far the lowest rank came, and when."""
        first = steps.select(steps.rank == steps.rank.min())
        at = int(np.argmax(first.time))
        self._recent.append((float(first.time[at]) / 1e6, int(first.step[at])))
        while self._recent[-1][0] - self._recent[0][0] > WINDOW and len(self._recent) > 2:
            self._recent.popleft()
        (began, low), (ended, high) = self._recent[0], self._recent[-1]
        if ended - began > 1.0 and high > low:
            self._facts["recent_rate"] = (high - low) / (ended - began)


def few(points: Points) -> Blocks:
    """Return the points of each curve, which stand in order, as a few buckets."""
    return thinned(build(points, 1), ROWS)


class Channels:
    """The runs that are followed."""

    def __init__(self) -> None:
        """Follow none."""
        self._lock = threading.Lock()
        self._open: dict[str, Channel] = {}

    def get(self, key: str) -> Channel | None:
        """Return a run that is followed already."""
        return self._open.get(key)

    def open(self, key: str, path: Path, connection: duckdb.DuckDBPyConnection) -> Channel:
        """Return a run, followed from now on."""
        with self._lock:
            self._drop_idle()
            if key not in self._open:
                self._open[key] = Channel(path, connection)
            return self._open[key]

    def close(self) -> None:
        """Follow none."""
        with self._lock:
            for channel in self._open.values():
                channel.close()
            self._open.clear()

    def _drop_idle(self) -> None:
        now = time.monotonic()
        oldest = sorted(self._open, key=lambda key: self._open[key].asked)
        idle = [key for key in oldest if now - self._open[key].asked > IDLE]
        for key in idle or oldest[: max(0, len(oldest) - CHANNELS + 1)]:
            self._open.pop(key).close()
