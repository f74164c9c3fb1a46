"""Messages from the watcher to the trainer's terminal: one word in the ring, one line on stderr."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from stepscope.core.places import NOTICE_SUFFIX

if TYPE_CHECKING:
    from pathlib import Path

OK = 0
DISK_FULL, READ_ONLY, GONE, IO_ERROR, NO_ACCESS = 1, 2, 3, 4, 5
RECOVERED, ALERTS_UNSENT, CUT, REPLACED = 6, 7, 8, 9
FAILURES = frozenset((DISK_FULL, READ_ONLY, GONE, IO_ERROR, NO_ACCESS))
"""The run cannot be written."""

MESSAGES = {
    DISK_FULL: "cannot write the run: the disk is full; free some space, the newest rows wait in memory until then",
    READ_ONLY: "cannot write the run: the file system is read-only; remount it or choose another dir=",
    GONE: "cannot write the run: its folder was removed or renamed; rows from now on are not kept",
    IO_ERROR: "cannot write the run: the disk reports an error; look at watcher.log in the run's folder",
    NO_ACCESS: "cannot write the run: permission denied; give this user the right to write there",
    RECOVERED: "the run can be written again",
    ALERTS_UNSENT: "cannot send all alerts: a channel does not answer or a rule is wrong; see `stepscope alerts check`",
    CUT: "cannot find parts of the run's folder: they were removed; what was in them is lost, recording goes on",
    REPLACED: "cannot write the run: a file is in the place of one of its folders; move it away, "
    "the newest rows wait in memory until then",
}

_BY_ERRNO = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), DISK_FULL),
    **dict.fromkeys((errno.ENOENT, errno.ESTALE), GONE),
    **dict.fromkeys((errno.EACCES, errno.EPERM), NO_ACCESS),
    errno.EROFS: READ_ONLY,
    errno.ENOTDIR: REPLACED,
}
_MOST_BYTES = 2000
"""Bytes of a notice that are read."""


def text_of(status: int, ring: Path | None = None) -> str:
    """Return the message of a status, "" for none; the notice that the watcher wrote next to the ring comes first."""
    if status == ALERTS_UNSENT and ring is not None:
        try:
            with ring.with_suffix(NOTICE_SUFFIX).open("rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8", "replace").strip() or MESSAGES[status]
        except OSError:  # gone, or never written
            return MESSAGES[status]
    return MESSAGES.get(status, "")


def from_error(error: OSError) -> int:
    """Return the status that describes a failed write."""
    return _BY_ERRNO.get(error.errno or 0, IO_ERROR)
