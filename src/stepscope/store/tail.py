"""The tail: rows that are not sealed yet, in frames with a checksum, exactly as they came out of the rings.

A tail file is self-contained: every declaration a row needs comes before it in the same file. Declarations are written
twice, so that one damaged frame costs only its own rows.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"SSF1"
FRAME = struct.Struct("<4sIIII")
"""Head of a frame: magic, crc32 of the rest, kind, stream number, length of the payload in bytes."""
HEAD_BYTES = 24
KIND_STREAM, KIND_SCHEMAS, KIND_RECORDS, KIND_CLOCK = 1, 2, 3, 4
MAX_PAYLOAD = 1 << 24
WORTH_KEEPING = 1 << 16
"""Bytes: a file that cannot grow beyond its first few frames does not justify starting another."""
CLOCK = struct.Struct("<qq")
"""A clock pair: wall time and monotonic time, both in ns."""


@dataclass(frozen=True)
class TailFrame:
    """One verified frame."""

    kind: int
    stream: int
    start: int
    """Offset of the payload in the file, in bytes: a multiple of 8."""
    end: int


def encode(kind: int, stream: int, payload: bytes) -> bytes:
    """Return the bytes of a frame, padded to a multiple of 8."""
    rest = struct.pack("<III", kind, stream, len(payload)) + bytes(4) + payload
    return MAGIC + struct.pack("<I", zlib.crc32(rest)) + rest + bytes(-len(payload) % 8)


def decode(data: bytes) -> Iterator[TailFrame | int]:
    """Yield the frames of a tail file; an int is a number of bytes that are not a complete frame.

    After damage, reading resumes at the next frame with a valid checksum.
    """
    position, size = 0, len(data)
    while position + HEAD_BYTES <= size:
        found = _frame_at(data, position)
        if found is None:
            resumed = _next_frame(data, position + 8)
            yield resumed - position
            position = resumed
            continue
        yield found
        position = found.end + -found.end % 8
    if position < size:
        yield size - position


def is_unfinished(rest: bytes) -> bool:
    """Return whether a tail ends in an unfinished write: half a frame, or zeros that a file server shows."""
    if not rest.strip(b"\0"):
        return True
    if len(rest) < HEAD_BYTES:
        return rest.startswith(MAGIC) or MAGIC.startswith(rest)
    magic, _, _, _, length = FRAME.unpack_from(rest)
    return bool(magic == MAGIC and HEAD_BYTES + length > len(rest))


def _frame_at(data: bytes, position: int) -> TailFrame | None:
    magic, crc, kind, stream, length = FRAME.unpack_from(data, position)
    if magic != MAGIC or length > MAX_PAYLOAD or position + HEAD_BYTES + length > len(data):
        return None
    end = position + HEAD_BYTES + length
    if zlib.crc32(data[position + 8 : end]) != crc:
        return None
    return TailFrame(kind, stream, position + HEAD_BYTES, end)


def _next_frame(data: bytes, start: int) -> int:
    """Return the position of the next complete frame at or after `start`, or the end of the data."""
    position = data.find(MAGIC, start)
    while position >= 0:
        aligned = position % 8 == 0 and position + HEAD_BYTES <= len(data)
        if aligned and _frame_at(data, position) is not None:
            return position
        position = data.find(MAGIC, position + 1)
    return len(data)


_sync = getattr(os, "fdatasync", os.fsync)  # not every system has the cheaper call


class TailFile:
    """Append frames to a new tail file, which has no other writer."""

    def __init__(self, path: str) -> None:
        """Create the file; raise FileExistsError if the name is taken."""
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self.size = 0
        self.broken = False
        """Whether to continue in a new file: a torn frame could not be truncated, or this file is full."""
        self._synced = 0

    def append(self, frames: list[bytes]) -> None:
        """Write all frames, or truncate the file to its old length and raise OSError."""
        data = b"".join(frames)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError as error:
            if written:
                self._cut_off()
            if error.errno == errno.EFBIG and self.size >= WORTH_KEEPING:
                self.broken = True  # a file size limit leaves room in the next file
            raise
        self.size += written

    def _cut_off(self) -> None:
        try:
            os.ftruncate(self._descriptor, self.size)
        except OSError:
            self.broken = True

    def sync(self) -> None:
        """Make written data survive a power loss."""
        if self._synced < self.size:
            _sync(self._descriptor)
            self._synced = self.size

    def gone(self) -> bool:
        """Return whether the file was deleted or replaced; one that cannot be examined still counts as ours."""
        try:
            ours, there = os.fstat(self._descriptor), os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
