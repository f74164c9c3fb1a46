"""The time in which nobody watched a run: its watcher was killed, and another one goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core import ring

if TYPE_CHECKING:
    from stepscope.store.drain import Stream


class Gap:
    """What a new watcher finds of the one before it in a ring."""

    def __init__(self, stream: Stream, now: int) -> None:
        """Look at the ring before anything is drained; `now` is monotonic, in ns."""
        last = stream.reader.words()[ring.WORD_HEARTBEAT]
        self._seconds = max(0, now - last) / 1e9 if last else None
        self._lost = stream.lost

    def event(self, stream: Stream) -> dict[str, Any] | None:
        """Return the event of this gap, now that the first rows were drained; None if there was none."""
        if self._seconds is None:
            return None
        return {"kind": "watcher_restarted", "seconds": round(self._seconds, 3), "lost_rows": stream.lost - self._lost}
