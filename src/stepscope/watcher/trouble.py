"""Writes that fail: parts of a run that were taken away, what the trainer is told, and when a watcher gives up."""

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

PATIENCE = 15.0
"""Seconds after the end of the last trainer in which a failed write is tried again."""
FULL_PATIENCE = 600.0
"""The same for a full disk, on which somebody may make space; then the rows stay in the ring for a salvager."""
SETTLE = 1.0
"""Seconds from the moment that a part is missing until it is made anew."""
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class Trouble:
    """What keeps one watcher from writing its run, if anything does."""

    def __init__(self, folder: RunFolder, journal: Journal) -> None:
        """Begin with a run that can be written."""
        self._folder, self._journal = folder, journal
        self.status = status.OK
        """What the trainers were told last; one of `core.status`."""
        self._since: float | None = None
        self._alone_since: float | None = None
        self._lost_tail = False
        self._cut_since: float | None = None

    def settle(self, error: OSError | None, now: float, streams: Iterable[Stream]) -> None:
        """Take in the first error of a tick, None for none, and tell the trainers what changed.

        Args:
            error: why something could not be written.
            now: monotonic time in seconds.
            streams: the rings of the trainers.
        """
        if error is not None:
            self._journal.note(f"cannot write the run: {error}; trying again", f"write {error.errno}")
            self._since = now if self._since is None else self._since
            self._tell(status.from_error(error), streams)
        elif self._since is not None:
            self._since = None
            self._tell(status.RECOVERED, streams)

    def _tell(self, code: int, streams: Iterable[Stream]) -> None:
        """Put a status where the trainers' next `log` finds it."""
        if code != self.status:
            self.status = code
            for stream in streams:
                stream.reader.set_word(ring.WORD_STATUS, code)

    def greet(self, stream: Stream) -> None:
        """Tell a trainer that has just come what keeps its rows from being written."""
        if self._since is not None:
            stream.reader.set_word(ring.WORD_STATUS, self.status)

    def is_over(self, now: float, streams: Iterable[Stream]) -> bool:
        """Say whether to give up: nothing can be written, and all trainers ended long enough ago."""
        if self._since is None or any(map(_goes_on, streams)):
            self._alone_since = None
            return False
        if self._alone_since is None:
            self._alone_since = now
        return now - self._alone_since >= (FULL_PATIENCE if self.status == status.DISK_FULL else PATIENCE)

    def folder_gone(self) -> bool:
        """Say whether the run's folder was removed or replaced; one that nobody lets us look at is not."""
        try:
            return not stat.S_ISDIR(self._folder.path.stat().st_mode)
        except OSError as error:
            return error.errno in _ABSENT

    def notice(self, now: float, *, lost: bool = False) -> bool:
        """Look for parts that were taken out of the run; say whether to hold off all writing for a moment.

        Whoever removes a whole run begins with its parts: for SETTLE seconds nothing is put into their way.

        Args:
            now: monotonic time in seconds.
            lost: a tail was taken away, with rows that were not sealed yet.
        """
        self._lost_tail = self._lost_tail or lost
        if self.folder_gone() or not (self._lost_tail or self._folder.missing()):
            self._cut_since = None
            return False
        self._cut_since = now if self._cut_since is None else self._cut_since
        return now - self._cut_since < SETTLE

    def is_cut(self) -> bool:
        """Say whether parts are missing, as far as `notice` has seen."""
        return self._cut_since is not None

    def mend(self, streams: Iterable[Stream]) -> None:
        """Make the parts anew that `notice` has found missing, and tell the trainers."""
        parts = ["a tail with the newest rows"] if self._lost_tail else []
        self._lost_tail, self._cut_since = False, None
        try:
            parts += self._folder.restore()
        except OSError:  # whoever wants to write there finds out why, and tells
            return
        what = ", ".join(parts)
        self._journal.note(f"parts of the run were removed: {what}; what was in them is lost, recording goes on")
        self._tell(status.CUT, streams)


def _goes_on(stream: Stream) -> bool:
    """Say whether more rows may come from a trainer."""
    return stream.reader.words()[ring.WORD_STATE] == ring.STATE_RUNNING and stream.writer_alive()
