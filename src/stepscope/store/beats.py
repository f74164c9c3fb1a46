"""Heartbeats against the clock of the file server: how far a node's clock is ahead, and how old a heartbeat is.

The modification time of a file is given by its server, on whichever node it was written. So it compares the clocks of
nodes that share a folder, and the age of a heartbeat does not depend on the reader's clock.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

FARTHEST = 600.0
"""Seconds by which a clock may plausibly be wrong; beyond it, the file was copied or touched later."""
ASK_AGAIN = 60.0
"""Seconds for which what a file server said about its clock holds."""


def ahead_of_server(beats: Sequence[tuple[float, float]]) -> list[float]:
    """Return by how many seconds each node's clock is ahead of the file server's, relative to no particular clock.

    `beats` has the node's own time of its last heartbeat, and the modification time of its file, in seconds since 1970.
    All are 0 where the files do not tell: they were copied or touched later.
    """
    found = [own - changed for own, changed in beats]
    return found if all(abs(seconds) <= FARTHEST for seconds in found) else [0.0] * len(found)


class ServerClock:
    """The clock of the file server of a folder, as a difference to the reader's own."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """Know nothing yet."""
        self._now = now
        self._known: dict[int, tuple[float, float]] = {}

    def now(self, folder: Path) -> float:
        """Return the time there, in seconds since 1970; the reader's own time where the folder cannot be written.

        It creates and deletes an empty file whose name readers ignore, at most once a minute.
        """
        own = self._now()
        try:
            device = folder.stat().st_dev
            asked, ahead = self._known.get(device, (-ASK_AGAIN, 0.0))
            if not 0 <= own - asked < ASK_AGAIN:
                ahead = _probe(folder) - own
                self._known[device] = own, ahead
        except OSError:  # it is read-only, full or gone
            return own
        return own + ahead


def _probe(folder: Path) -> float:
    path = folder / f".clock-{os.getpid()}-{os.urandom(4).hex()}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
