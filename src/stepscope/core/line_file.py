"""Append whole lines to a file that may end in a torn line after a crash or on a full disk."""

from __future__ import annotations

import contextlib
import os


def append_lines(descriptor: int, data: bytes, *, sync: bool = False) -> None:
    """Append lines, with `sync` durable when this returns; on an error the file is as it was, or ends in a torn line.

    A torn line at the end of the file is closed first, so that it cannot spoil the new ones.
    """
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        data = b"\n" + data
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
        if sync:
            os.fdatasync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):  # then a torn line stays, which the next call closes
            os.ftruncate(descriptor, size)
        raise
