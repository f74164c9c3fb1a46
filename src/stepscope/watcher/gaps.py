"""The time in which nobody watched a run: its watcher was killed, and another one goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core import ring

if TYPE_CHECKING:
    from stepscope.store.drain import Stream


class Gap:
    """What a new watcher finds of the one before it in a ring."""

    def __init__(self, stream: Stream) -> None:
        """Look at the ring before anything is drained, and before it gets a sign of life."""
        self._last, self._lost = stream.reader.words()[ring.WORD_HEARTBEAT], stream.lost

    def event(self, stream: Stream, now: int) -> dict[str, Any] | None:
        """Return the event of this gap, now that the first rows were drained; None if nobody was there before us.

        `now` is monotonic, in ns.
        """
        if not self._last:
            return None
        seconds = round(max(0, now - self._last) / 1e9, 3)
        return {"kind": "watcher_restarted", "seconds": seconds, "lost_rows": stream.lost - self._lost}
