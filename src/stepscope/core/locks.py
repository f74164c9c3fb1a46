"""The holder of a lock on a byte of a file (POSIX locks, which rings use)."""

from __future__ import annotations

import fcntl
import os
import struct

_LOCK = struct.Struct("hhqqi4x")
"""struct flock: type, whence, start, length, pid."""


def holder(descriptor: int, byte: int) -> int | None:
    """Return the pid, in our namespace, of the process that holds the lock on one byte of a file.

    None if there is none, or it is this process; 0 if the holder is in a pid namespace that we cannot see.
    """
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    kind, _, _, _, pid = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(0, pid)
