"""Notices new rings in the runtime folders of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.places import Places

SETTLE, ANYWAY = 2.0, 5.0
"""Seconds after a change in which a folder's time proves nothing, and between two listings in any case."""


class RingFolders:
    """The folders in which the rings of a run appear; checking their times is cheaper than listing them."""

    def __init__(self, places: Places, run: Path) -> None:
        """Check nothing yet."""
        self._paths = [places.of_run(str(run), root) for root in places.roots()]
        self._times: list[int] = []
        self._changed = self._listed = 0.0

    def may_have_new(self, now: float) -> bool:
        """Return whether a ring may have appeared since the last True; `now` is monotonic, in seconds."""
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
