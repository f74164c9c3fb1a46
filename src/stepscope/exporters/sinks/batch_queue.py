"""The batches that are sent next, divided as the sink needs it: because it refuses one, or is too slow for it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stepscope.exporters.sinks.sink import CALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.exporters.sinks.sink import SinkBatch

QUICK = CALL_SECONDS / 4
"""Seconds that a call may take for the next batch to be twice as large: it would still be in time."""


class BatchQueue:
    """Batches of one portion, in order. After a call that took too long they are smaller, until calls are quick."""

    def __init__(self) -> None:
        """Start with none, and without a limit."""
        self._batches: deque[SinkBatch] = deque()
        self.most = float("inf")
        """Points that a batch should have at most."""

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: SinkBatch) -> None:
        """Put a batch at the end."""
        self._batches.append(batch)

    def first(self, *, divides_rows: bool) -> SinkBatch:
        """Return the first batch, of as many points as the sink takes in time."""
        while len(self._batches[0]) > self.most and self.divide(divides_rows=divides_rows):
            pass
        return self._batches[0]

    def divide(self, *, divides_rows: bool) -> bool:
        """Replace the first batch by its halves; False if it cannot be divided."""
        halves = self._batches[0].halves(divides_rows=divides_rows)
        if halves is not None:
            self._batches.popleft()
            self.put_back(halves)
        return halves is not None

    def pop(self) -> None:
        """Remove the first batch."""
        self._batches.popleft()

    def put_back(self, batches: Iterable[SinkBatch]) -> None:
        """Put batches before all others, in their order."""
        self._batches.extendleft(reversed(list(batches)))

    def was_late(self, points: int) -> None:
        """Make batches half as large: the sink did not answer in time to one of so many points."""
        self.most = max(1, points // 2)

    def was_taken(self, points: int, seconds: float) -> None:
        """Make batches twice as large again if one of about the largest size was taken quickly."""
        if seconds < QUICK and 2 * points > self.most:
            self.most *= 2
