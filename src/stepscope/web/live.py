"""Live runs: the new rows since a page last polled, encoded once for all pages that show the run.

There is no timer and no push: the first poll after a pause makes the next frame, other polls get the same bytes. A run
that no page polls costs nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.store.curves import spans, thinned
from stepscope.store.following import TailFollower
from stepscope.store.layout import RunFolder
from stepscope.store.pyramid import Blocks, build
from stepscope.store.reader import Past
from stepscope.views.curve_message import encode_frame
from stepscope.views.event_list import EventCount
from stepscope.views.pace import STEP, pace_of
from stepscope.views.run_card import EPOCH, card
from stepscope.views.run_card import status as status_of
from stepscope.web.failures import CursorExpiredError

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb
    from numpy.typing import NDArray

    from stepscope.store.block_cache import BlockCache
    from stepscope.store.points import Points

PACE = 0.2
"""Seconds between two reads of a run, however many pages poll it."""
ROWS = 8
"""Buckets of one curve in one frame."""
FRAMES = 240
"""Frames that are kept for pages that fall behind: two minutes of polls at 2 Hz."""
MAX_BYTES = 1 << 23
"""Bytes of all frames of one run."""
IDLE = 60.0
"""Seconds without a poll after which a run is no longer followed."""
MAX_LIVE_RUNS = 64
"""Runs that are followed at a time."""
WINDOW = 30.0
"""Seconds of steps that the remaining time is estimated from."""


class FollowedRun:
    """One run that pages follow while it is recorded."""

    def __init__(self, path: Path, connection: duckdb.DuckDBPyConnection, cache: BlockCache | None = None) -> None:
        """Begin with the rows so far. Raises StepscopeError if the run cannot be read."""
        self._folder = RunFolder(path)
        self._lock = threading.Lock()
        self._follower = TailFollower(self._folder)
        self._events = EventCount(self._folder)
        past = Past(self._folder, connection, cache)
        names = past.names()
        self._facts = {**card(past, names), "names": len(names)}
        self._names = set(names)
        self._pace, self._recent = pace_of(past), deque[tuple[float, int]]()
        self._reset()
        self.polled_at = time.monotonic()

    def _reset(self) -> None:
        """Invalidate all cursors, and number the curves from 0 again."""
        self._generation = os.urandom(4).hex()
        self._curves: dict[tuple[str, int, int], int] = {}
        self._frames: deque[tuple[int, bytes]] = deque()
        self._number = 0
        self._bytes = 0
        self._last_status: dict[str, Any] = {}
        self._polled = 0.0

    @property
    def cursor(self) -> str:
        """Cursor of a page that has received everything."""
        return f"{self._generation}-{self._number}"

    def hello(self) -> dict[str, Any]:
        """Return the cursor, the numbers of the curves so far, and the status of the run."""
        self.polled_at = time.monotonic()
        self.poll()
        with self._lock:
            curves = [[number, *key] for key, number in self._curves.items()]
            return {"cursor": self.cursor, "curves": curves, "status": self._status()}

    def since(self, cursor: str) -> bytes | None:
        """Return the frames after a cursor; None if nothing is new. Raises CursorExpiredError if they are gone."""
        self.polled_at = time.monotonic()
        generation, _, number = cursor.partition("-")
        with self._lock:
            first = self._frames[0][0] if self._frames else self._number + 1
            if generation != self._generation or not number.isdecimal() or int(number) + 1 < first:
                raise CursorExpiredError
            if int(number) >= self._number:
                return None
            return b"".join(data for at, data in self._frames if at > int(number))

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed for another read."""
        return time.monotonic() - self._polled >= PACE

    def poll(self) -> None:
        """Read new points and the status; make a frame if anything changed."""
        with self._lock:
            if not self.is_due:
                return
            points = self._follower.look()
            if self._follower.missed:
                self._follower.missed = False
                self._reset()
            self._polled = time.monotonic()
            self._update_facts(points)
            status = self._status()
            timeless = {key: value for key, value in status.items() if key != "now"}
            if len(points) or timeless != self._last_status:
                self._last_status = timeless
                self._add(points, status)

    def close(self) -> None:
        """Close the files."""
        self._follower.close()

    def _status(self) -> dict[str, Any]:
        return status_of(self._folder, self._facts, self._events)

    def _add(self, points: Points, status: dict[str, Any]) -> None:
        rows = few(points)
        curve, new = self._numbered(rows)
        self._number += 1
        head = {"frame": self._number, "cursor": self.cursor, "new": new, "status": status}
        data = encode_frame(head, rows, curve)
        self._frames.append((self._number, data))
        self._bytes += len(data)
        while len(self._frames) > FRAMES or self._bytes > MAX_BYTES:
            self._bytes -= len(self._frames.popleft()[1])

    def _numbered(self, rows: Blocks) -> tuple[NDArray[np.uint32], list[list[Any]]]:
        """Return the number of each row's curve, and the curves that are new."""
        numbers = np.zeros(len(rows), np.uint32)
        new: list[list[Any]] = []
        for first, last in spans(rows):
            key = (rows.names[int(rows.name[first])], int(rows.rank[first]), int(rows.attempt[first]))
            if key not in self._curves:
                self._curves[key] = len(self._curves)
                new.append([self._curves[key], *key])
            numbers[first:last] = self._curves[key]
        return numbers, new

    def _update_facts(self, points: Points) -> None:
        """Update the facts of the status that come from points: number of metrics, epoch, speed."""
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
            self._update_recent_rate(points.select(points.name == points.names.index(STEP)))

    def _update_recent_rate(self, steps: Points) -> None:
        """Compute the current speed from the progress of the lowest rank; the remaining time depends on it."""
        first = steps.select(steps.rank == steps.rank.min())
        at = int(np.argmax(first.time))
        self._recent.append((float(first.time[at]) / 1e6, int(first.step[at])))
        while self._recent[-1][0] - self._recent[0][0] > WINDOW and len(self._recent) > 2:
            self._recent.popleft()
        (began, low), (ended, high) = self._recent[0], self._recent[-1]
        if ended - began > 1.0 and high > low:
            self._facts["recent_rate"] = (high - low) / (ended - began)


def few(points: Points) -> Blocks:
    """Return the points of each curve, which are in order, as a few buckets."""
    return thinned(build(points, 1), ROWS)


class FollowedRuns:
    """The runs that pages follow."""

    def __init__(self, cache: BlockCache | None = None) -> None:
        """Follow no run; `cache` is that of other readers."""
        self._cache = cache
        self._lock = threading.Lock()
        self._open: dict[str, FollowedRun] = {}

    def get(self, key: str) -> FollowedRun | None:
        """Return a run that is followed already; None otherwise."""
        return self._open.get(key)

    def open(self, key: str, path: Path, connection: duckdb.DuckDBPyConnection) -> FollowedRun:
        """Return a run, and follow it from now on."""
        with self._lock:
            self._drop_idle()
            if key not in self._open:
                self._open[key] = FollowedRun(path, connection, self._cache)
            return self._open[key]

    def close(self) -> None:
        """Stop following all runs."""
        with self._lock:
            for run in self._open.values():
                run.close()
            self._open.clear()

    def _drop_idle(self) -> None:
        now = time.monotonic()
        oldest = sorted(self._open, key=lambda key: self._open[key].polled_at)
        idle = [key for key in oldest if now - self._open[key].polled_at > IDLE]
        for key in idle or oldest[: max(0, len(oldest) - MAX_LIVE_RUNS + 1)]:
            self._open.pop(key).close()
