"""Rings that come: what happens in the runtime folders around a watcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.places import Places

SETTLE, ANYWAY = 2.0, 5.0
"""Seconds after a change in which the time of a folder proves nothing, and between two lists whatever it says."""


class RingFolders:
    """The folders in which a run's rings come; a look at their times is cheaper than a list."""

    def __init__(self, places: Places, run: Path) -> None:
        """Look at nothing yet."""
        self._paths = [places.of_run(str(run), root) for root in places.roots()]
        self._times: list[int] = []
        self._changed = self._listed = 0.0

    def may_have_new(self, now: float) -> bool:
        """Say whether a ring may have come since it last said so; `now` is monotonic, in seconds."""
        times = [_changed(path) for path in self._paths]
        if times != self._times:
            self._times, self._changed = times, now
        if now - self._changed > SETTLE and now - self._listed < ANYWAY:
            return False
        self._listed = now
        return True


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
