"""The spill of a ring: where its writer puts undrained segments when it must reuse their space.

A file of at most WORD_SPILL_BYTES next to the ring, or on local disk. Positions are those of the ring; the byte at
position p is at ``p % WORD_SPILL_BYTES``. It holds positions WORD_SPILL_FROM to WORD_SPILL_END. A drained file
is deleted and a new one begun by the next burst; WORD_SPILL_FILE changes with each.
"""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.core import ring
from stepscope.core.places import SPILL_SUFFIX

MOST_BYTES = 1 << 36
"""Bytes beyond any spill: a header with more is damaged."""


def spill_paths(ring_path: Path, identity: ring.RingIdentity) -> list[Path]:
    """Return the possible paths of a ring's spill: next to the ring, or as its identity has it."""
    other = identity.extra.get("spill")
    beside = ring_path.with_suffix(SPILL_SUFFIX)
    return [beside, Path(other)] if isinstance(other, str) and Path(other).suffix == SPILL_SUFFIX else [beside]


class SpillReader:
    """Reads the spilled records of a ring; a missing or cut file costs its rows, and nothing else."""

    def __init__(self, paths: list[Path]) -> None:
        """Open nothing yet: few rings ever spill."""
        self._paths = paths
        self._descriptor, self._file = -1, 0

    def read(self, reader: ring.RingReader, cursor: int, limit: int) -> tuple[list[ring.Piece], int]:
        """Return records from `cursor` on, about `limit` bytes, and the next cursor."""
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
        """Open the current file; return whether there is one."""
        if self._descriptor >= 0 and self._file == file:
            return True
        self.close()
        for path in self._paths:
            try:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:  # missing: it may be at the other path, or was removed
                continue
            self._file = file
            return True
        return False

    def close(self) -> None:
        """Close the file; the memory of a deleted file is free then."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close_if_old(self, file: int) -> None:
        """Close a file that the writer no longer uses; `file` is the number of the current one."""
        if self._file != file:
            self.close()
