"""LevelDB's log format, as W&B and SwanLab use it: records in blocks of 32 KiB, after seven bytes that name it."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from stepscope.importers.source import chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

IDENT = struct.Struct("<4sHB")
"""The start of a file: name, magic number and version of the tool's format."""
BLOCK = 32 * 1024
HEADER = struct.Struct("<IHB")
"""Before each piece of a record: checksum, length, kind."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
MOST_RECORD = 64 * 2**20
"""Maximum bytes of a reassembled record."""
READ_AT_ONCE = 4 * 2**20
"""Maximum bytes read at once."""


def records(path: str, version: int, note: Callable[[str], None]) -> Iterator[list[bytes]]:
    """Yield whole records as they come; after a wrong checksum the rest of the block is skipped.

    Args:
        path: the file.
        version: the newest version of the tool's format that is known.
        note: is called with what could not be read.
    """
    log = LevelLog(version, note)
    for portion in chunks(path, note, READ_AT_ONCE):
        yield list(log.whole(portion))
    if log.is_cut:
        note("the last record is cut: the run was being written or was killed")


class LevelLog:
    """The state between two portions of a file, which may end anywhere."""

    def __init__(self, version: int, note: Callable[[str], None], block: int = 0) -> None:
        """Read from the start, or from a later block: a record that began before it is left out."""
        self._version, self._note = version, note
        self._ident = bytes(IDENT.size) if block else b""
        self._rest, self._begin, self._skipped = b"", block * BLOCK or IDENT.size, 0
        """Bytes that are not decoded yet, their place in the file, and how many of them to skip."""
        self._begun: list[bytes] | None = None
        """The pieces of a record of which more must come."""

    @property
    def is_cut(self) -> bool:
        """Whether the portions so far end within a record."""
        return self._begun is not None or any(self._rest)

    def whole(self, portion: bytes) -> Iterator[bytes]:
        """Yield the records that end in a portion."""
        for kind, piece in self._pieces(self._after_ident(portion)):
            if kind == FULL:
                self._begun = None
                yield piece
                continue
            if kind == FIRST:
                self._begun = []
            if self._begun is None or sum(map(len, self._begun)) + len(piece) > MOST_RECORD:
                self._begun = None
                self._note("pieces of records that have no beginning or no end, left out")
                continue
            self._begun.append(piece)
            if kind == LAST:
                yield b"".join(self._begun)
                self._begun = None

    def _after_ident(self, portion: bytes) -> bytes:
        missing = IDENT.size - len(self._ident)
        if missing:
            self._ident += portion[:missing]
            version = self._ident[-1]
            if len(self._ident) == IDENT.size and version > self._version:
                self._note(f"its format has version {version}, newer than ours ({self._version}): what fits is read")
        return portion[missing:]

    def _pieces(self, portion: bytes) -> Iterator[tuple[int, bytes]]:
        data = self._rest + portion
        at = self._skipped
        while len(data) - at >= HEADER.size:
            room = BLOCK - (self._begin + at) % BLOCK
            checksum, size, kind = HEADER.unpack_from(data, at)
            end = at + HEADER.size + size
            if room < HEADER.size or not (checksum or size or kind):
                at += room  # padding, or space that was reserved and never written
            elif end - at > room or not FULL <= kind <= LAST:
                self._note("damaged blocks: the rest of each is left out")
                at += room
            elif end > len(data):
                break
            elif zlib.crc32(memoryview(data)[at + 6 : end]) != checksum:
                self._note("blocks with a wrong checksum: the rest of each is left out")
                at += room
            else:
                yield kind, data[at + HEADER.size : end]
                at = end
        taken = min(at, len(data))
        self._rest, self._begin, self._skipped = data[taken:], self._begin + taken, at - taken
