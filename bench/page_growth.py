"""Whether a page grows: what it holds after a forced collection of garbage, read again and again.

Heap is what scripts use, arrays outside V8's own heap included. The slope is taken after the first two minutes: until
then code is compiled and curves fill the room that they have. What is left of a slope after that is the browser's own:
code that it compiles later, and its lists of the last requests and frames, of which it keeps 150 to 250 each.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.processes import kib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SPAN = 600.0
"""Seconds that the slope is told for."""
WARM = 120.0
"""Seconds of a whole measurement that do not count; of a shorter one the first fifth."""
TIMES = 3
"""Readings at each moment, of which the lowest counts."""
COUNTS = {"Nodes": "nodes", "JSEventListeners": "listeners", "Documents": "documents"}
"""What else is counted, as DevTools call it."""


@dataclass(frozen=True)
class Reading:
    """What a page and its server hold at one moment."""

    seconds: float
    heap: int
    server: int
    counts: dict[str, int]


class Watch:
    """Reads a page through the tools of its browser; a context manager."""

    def __init__(self, page: Any, server: int) -> None:
        """Begin; `server` is the server's pid."""
        self._client, self._server = page.context.new_cdp_session(page), server
        self._client.send("Performance.enable")
        self._began = time.monotonic()
        self.readings: list[Reading] = []

    def __enter__(self) -> Watch:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def read(self) -> None:
        """Collect the garbage, then read; the lowest of a few, for an answer may just be on its way."""
        found = [self._once() for _ in range(TIMES)]
        self.readings.append(min(found, key=lambda one: one.heap))

    def _once(self) -> Reading:
        for _ in range(2):  # what has a finaliser goes at the second time
            self._client.send("HeapProfiler.collectGarbage")
        used = self._client.send("Runtime.getHeapUsage")
        told = {row["name"]: int(row["value"]) for row in self._client.send("Performance.getMetrics")["metrics"]}
        heap = int(used["usedSize"]) + int(used.get("backingStorageSize", 0))
        counts = {name: told[key] for key, name in COUNTS.items()}
        server = kib(self._server, "Pss", "smaps_rollup") * 1024
        return Reading(time.monotonic() - self._began, heap, server, counts)

    def follow(self, seconds: float, every: float, wait: Callable[[float], None] = time.sleep) -> None:
        """Read at once, and then every so many seconds until so many have passed."""
        self.read()
        while (left := self._began + seconds - time.monotonic()) > 0.05:
            wait(min(every, left))
            self.read()

    def __exit__(self, *_: object) -> None:
        self._client.detach()


def slope(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between all pairs (Theil and Sen): a few odd readings do not matter."""
    found = [(y1 - y0) / (x1 - x0) for x0, y0 in pairs for x1, y1 in pairs if x1 > x0]
    return statistics.median(found) if found else 0.0


def growth(readings: Sequence[Reading], of: Callable[[Reading], float]) -> float:
    """Return how much something grows in ten minutes, once it is warm."""
    if not readings:
        return 0.0
    warm = min(WARM, readings[-1].seconds / 5)
    return SPAN * slope([(one.seconds, of(one)) for one in readings if one.seconds >= warm])
