"""Failed writes: missing parts of a run, the status that trainers get, and when a watcher gives up."""

from __future__ import annotations

import errno
import stat
from typing import TYPE_CHECKING

from stepscope.core import ring, status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.store.drain import Stream
    from stepscope.store.layout import RunFolder
    from stepscope.watcher.journal import Journal

PATIENCE, FULL_PATIENCE = 15.0, 600.0
"""Seconds after the end of the last trainer in which a failed write is repeated, and the same for a full disk.

Afterwards the rows stay in the ring for a salvager.
"""
SETTLE = 1.0
"""Seconds from noticing a missing part until it is created again."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class Trouble:
    """What prevents a watcher from writing its run, if anything does."""

    def __init__(self, folder: RunFolder, journal: Journal) -> None:
        """Start with a run that can be written."""
        self._folder, self._journal = folder, journal
        self.status = status.OK
        """The last status that the trainers got; one of `core.status`."""
        self._since: float | None = None
        self._alone_since: float | None = None
        self._lost_tail = False
        self._cut_since: float | None = None

    def update(self, error: OSError | None, now: float, streams: Iterable[Stream]) -> None:
        """Handle the first error of a tick (None without one); set the trainers' status if it changed.

        `now` is monotonic, in seconds; `streams` are the rings of the trainers.
        """
        if error is not None:
            self._journal.note(f"cannot write the run: {error}; trying again", f"write {error.errno}")
            self._since = now if self._since is None else self._since
            self._tell(status.from_error(error), streams)
        elif self._since is not None:
            self._since = None
            self._tell(status.RECOVERED, streams)

    def _tell(self, code: int, streams: Iterable[Stream]) -> None:
        """Write a status into the rings, where the trainers' next `log` finds it."""
        if code != self.status:
            self.status = code
            for stream in streams:
                stream.reader.set_word(ring.WORD_STATUS, code)

    def greet(self, stream: Stream) -> None:
        """Set the status of a new trainer if its rows cannot be written."""
        if self._since is not None:
            stream.reader.set_word(ring.WORD_STATUS, self.status)

    def is_over(self, now: float, streams: Iterable[Stream]) -> bool:
        """Return whether to give up: nothing can be written, and all trainers ended long enough ago."""
        if self._since is None or any(map(_may_write, streams)):
            self._alone_since = None
            return False
        if self._alone_since is None:
            self._alone_since = now
        return now - self._alone_since >= (FULL_PATIENCE if self.status == status.DISK_FULL else PATIENCE)

    def folder_gone(self) -> bool:
        """Return whether the run's folder was removed or replaced; one that we must not read still exists."""
        try:
            return not stat.S_ISDIR(self._folder.path.stat().st_mode)
        except OSError as error:
            return error.errno in _ABSENT

    def notice(self, now: float, *, lost: bool = False) -> bool:
        """Check for missing parts of the run; return whether to pause all writing for now.

        They may be the beginning of a deletion of the run, so nothing is created for SETTLE seconds. `now` is
        monotonic, in seconds; `lost`: a tail was removed, with rows that were not sealed.
        """
        self._lost_tail = self._lost_tail or lost
        if self.folder_gone() or not (self._lost_tail or self._folder.missing()):
            self._cut_since = None
            return False
        self._cut_since = now if self._cut_since is None else self._cut_since
        return now - self._cut_since < SETTLE

    def is_cut(self) -> bool:
        """Return whether `notice` has found missing parts."""
        return self._cut_since is not None

    def mend(self, streams: Iterable[Stream]) -> None:
        """Restore the parts that `notice` has found missing, and set the trainers' status."""
        parts = ["a tail with the newest rows"] if self._lost_tail else []
        self._lost_tail, self._cut_since = False, None
        try:
            parts += self._folder.restore()
        except OSError:  # the next write reports why it fails
            return
        what = ", ".join(parts)
        self._journal.note(f"parts of the run were removed: {what}; what was in them is lost, recording continues")
        self._tell(status.CUT, streams)


def _may_write(stream: Stream) -> bool:
    """Return whether more rows may come from a trainer."""
    return stream.reader.words()[ring.WORD_STATE] == ring.STATE_RUNNING and stream.writer_alive()
