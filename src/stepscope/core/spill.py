"""The spill of a ring: where its writer puts segments that nobody has drained, when it must use their place again.

A file of at most WORD_SPILL_BYTES beside the ring, or on local disk. Positions are those of the ring; the byte at
position p lies at ``p % WORD_SPILL_BYTES``. It holds what lies from WORD_SPILL_FROM to WORD_SPILL_END. A drained file
is deleted and a new one begun by the next burst; WORD_SPILL_FILE changes with each.
"""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.core import ring
from stepscope.core.places import SPILL_SUFFIX

MOST_BYTES = 1 << 36
"""Bytes that no spill takes: a header that says more is damaged."""


def spill_paths(ring_path: Path, identity: ring.Identity) -> list[Path]:
    """Return where the spill of a ring may lie: beside it, or where its identity says."""
    other = identity.extra.get("spill")
    beside = ring_path.with_suffix(SPILL_SUFFIX)
    return [beside, Path(other)] if isinstance(other, str) and Path(other).suffix == SPILL_SUFFIX else [beside]


class SpillReader:
    """Read what a ring has spilled; a file that is gone or cut costs its rows, and nothing else."""

    def __init__(self, paths: list[Path]) -> None:
        """Open nothing yet: few rings ever spill."""
        self._paths = paths
        self._descriptor, self._file = -1, 0

    def read(self, reader: ring.RingReader, cursor: int, limit: int) -> tuple[list[ring.Piece], int]:
        """Return records from `cursor` on that lie here, about `limit` bytes, and where to go on."""
        words = reader.words()
        size, end = words[ring.WORD_SPILL_BYTES], words[ring.WORD_SPILL_END]
        position = max(cursor, words[ring.WORD_SPILL_FROM])
        is_sound = 0 < size <= MOST_BYTES and size % reader.segment_bytes == 0 and end - position <= size
        if position >= end or not is_sound or not self._opened(words[ring.WORD_SPILL_FILE]):
            return [], cursor
        pieces: list[ring.Piece] = []
        taken = 0
        while position < end and taken < limit:
            until = min(end, (position // reader.segment_bytes + 1) * reader.segment_bytes)
            data = os.pread(self._descriptor, until - position, position % size)
            pieces.append(ring.Piece(position, reader.whole_records(data)[0]))
            position, taken = until, taken + until - position
        first = reader.words()[ring.WORD_SPILL_FROM]
        return [piece for piece in pieces if piece.position >= first and piece.data], max(position, first)

    def _opened(self, file: int) -> bool:
        """Have the current file open; say whether there is one."""
        if self._descriptor >= 0 and self._file == file:
            return True
        self.close()
        for path in self._paths:
            try:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:  # not there: it may lie at the other place, or was taken away
                continue
            self._file = file
            return True
        return False

    def close(self) -> None:
        """Let go of the file; the memory of one that was deleted is free then."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close_if_old(self, file: int) -> None:
        """Let go of a file that the writer has given up; `file` is the number of the current one."""
        if self._file != file:
            self.close()
