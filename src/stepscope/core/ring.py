"""The ring between a trainer and its watcher: the layout of the file, and how to read it from outside.

A ring is a file of fixed size in shared memory with one writer (a rank of the training) and one reader
(its watcher, or a salvager when both are gone). docs/reference/format.md describes it. Rows that do not fit during a
burst go to a spill file, segment by segment.

Positions are absolute: they count bytes since the ring was made and never go back. The byte at position
p is at ``HEADER_BYTES + p % capacity``. A record never straddles two segments.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.core import records
from stepscope.core.places import SPILL_SUFFIX

MAGIC = int.from_bytes(b"STEPRING", "little")
VERSION = 2
READABLE = (1, 2)
"""Versions that this program reads; a ring of version 1 never has a spill file."""
HEADER_BYTES = 4096
SEGMENTS = 64

# Header words: 8 bytes each, written as one store, each by one side only.
WORD_MAGIC, WORD_VERSION, WORD_SEGMENT_BYTES, WORD_CHECKED = 0, 1, 2, 3
WORD_HEAD, WORD_OLDEST, WORD_STATE, WORD_REFUSED = 4, 5, 6, 7
WORD_CALLS, WORD_CALL_NS, WORD_PHASE = 8, 9, 10
WORD_SPILL_FROM, WORD_SPILL_END, WORD_SPILL_FILE, WORD_SPILL_BYTES = 11, 12, 13, 14
WORD_STATUS, WORD_CURSOR, WORD_EXPECTED, WORD_LOST = 16, 17, 18, 19
WORD_HEARTBEAT, WORD_ENDED, WORD_STOP = 20, 21, 22
WORDS = 23
IDENTITY_OFFSET = 256
"""Offset in bytes of the identity: length, crc32, JSON."""

MOST_SPILL_BYTES = 1 << 36
"""Bytes beyond any spill: a header with more is damaged."""
TRIES = 3
"""How often a read that the writer lapped is tried again before the next call does."""

LOCK_WRITER, LOCK_READER = 0, 1
"""Bytes of the file on which the trainer and the one consumer hold their locks."""
_FLOCK = struct.Struct("hhqqi4x")
"""struct flock: type, whence, start, length, pid."""

STATE_RUNNING, STATE_FINISHED, STATE_FAILED, STATE_EXITED = 1, 2, 3, 4
STATE_NAMES = {STATE_RUNNING: "running", STATE_FINISHED: "finished", STATE_FAILED: "failed", STATE_EXITED: "finished"}

LONG_PHASES = {"evaluation": 1, "validation": 1, "eval": 1, "checkpoint": 2, "checkpointing": 2, "compile": 3}
"""Phases that may last for minutes, by the program's name for them; the header has the one that is open."""
PHASE_NAMES = ("", "evaluation", "checkpoint", "compile")
FOLLOWED = "followed"
"""In `RingIdentity.extra` of a run that another tool records: its rows have times of their own, mapped by the pair in
the identity alone, and the writer's process is not the training's."""
NO_STEP = records.NO_STEP
"""Step of a row that belongs to no step."""


class RingIdentity(NamedTuple):
    """The writer of a ring: enough to decode the ring and to file its rows after every process died."""

    run_path: str
    rank: int
    attempt: int
    node_rank: int
    pid: int
    boot_id: str
    wall_ns: int
    monotonic_ns: int
    schema_path: str
    version: int = VERSION
    extra: dict[str, Any] = {}  # noqa: RUF012 - never changed

    def encode(self) -> bytes:
        """Return the bytes that stand at IDENTITY_OFFSET."""
        text = json.dumps(self._asdict(), separators=(",", ":")).encode()
        return struct.pack("<II", len(text), zlib.crc32(text)) + text

    @classmethod
    def decode(cls, data: bytes) -> RingIdentity:
        """Read the identity from the bytes at IDENTITY_OFFSET; raise ValueError if they are damaged."""
        length, crc = struct.unpack_from("<II", data) if len(data) >= 8 else (-1, 0)
        text = data[8 : 8 + length]
        if len(text) != length or zlib.crc32(text) != crc:
            raise ValueError("the identity of the ring is damaged")
        known = {key: value for key, value in json.loads(text).items() if key in cls._fields}
        return cls(**known)


def segment_bytes(ring_bytes: int) -> int:
    """Return the bytes of one segment in a ring file of `ring_bytes`, a multiple of 8."""
    return (ring_bytes - HEADER_BYTES) // SEGMENTS // 8 * 8


class Piece(NamedTuple):
    """Whole records that follow each other in one segment, unchanged."""

    position: int
    data: bytes


class RingReader:
    """Read a ring through its file descriptor, by pread: a truncated file is a short read, never SIGBUS."""

    def __init__(self, descriptor: int) -> None:
        """Read the fixed part of the header; raise ValueError if this is no ring that we know."""
        self._descriptor = descriptor
        self.spill: SpillReader | None = None
        """What reads the rows that the writer moved out of the ring; None: they count as lost."""
        head = self.words()
        if head[WORD_MAGIC] != MAGIC or head[WORD_VERSION] not in READABLE:
            raise ValueError("not a ring of this version")
        self.segment_bytes = head[WORD_SEGMENT_BYTES]
        if not 64 <= self.segment_bytes <= 1 << 30 or self.segment_bytes % 8:
            raise ValueError("the header of the ring is damaged")
        self.capacity = self.segment_bytes * SEGMENTS
        if os.fstat(descriptor).st_size < HEADER_BYTES + self.capacity:
            raise ValueError("the ring was truncated")
        self.checked = bool(head[WORD_CHECKED])
        self.identity = RingIdentity.decode(os.pread(descriptor, HEADER_BYTES - IDENTITY_OFFSET, IDENTITY_OFFSET))

    def words(self) -> tuple[int, ...]:
        """Return the current header words."""
        data = os.pread(self._descriptor, WORDS * 8, 0)
        if len(data) < WORDS * 8:
            raise ValueError("the ring was truncated")
        return struct.unpack(f"<{WORDS}Q", data)

    def set_word(self, word: int, value: int) -> None:
        """Store a word of the consumer's: status, cursor, expected sequence, lost rows."""
        os.pwrite(self._descriptor, value.to_bytes(8, "little"), word * 8)

    def set_progress(self, cursor: int, expected: int, lost: int) -> None:
        """Store cursor, expected sequence and lost rows in one call: a kill must not separate them."""
        os.pwrite(self._descriptor, struct.pack("<3Q", cursor, expected, lost), WORD_CURSOR * 8)

    def read(self, cursor: int, limit: int = 1 << 20) -> tuple[list[Piece], int]:
        """Return the published records from `cursor` on, about `limit` bytes of them, and the next cursor.

        Records that the writer lapped are left out; the gap shows in the sequence of the records.

        Raises:
            ValueError: the ring was truncated, or its header is damaged.
        """
        for _ in range(TRIES):
            words = self.words()
            if words[WORD_HEAD] - words[WORD_OLDEST] > self.capacity:
                words = self.words()  # the writer may have moved on between the two words
            if words[WORD_HEAD] - words[WORD_OLDEST] > self.capacity:
                raise ValueError("the header of the ring is damaged")
            if cursor < words[WORD_OLDEST] and self.spill is not None:
                pieces, cursor = self.spill.read(self, cursor, limit)
                if pieces:
                    return pieces, cursor
            if self.spill is not None:
                self.spill.close_if_old(words[WORD_SPILL_FILE])
            first = max(cursor, words[WORD_OLDEST])
            pieces, position = self._read_ring(first, words[WORD_HEAD], limit)
            words = self.words()
            oldest = words[WORD_OLDEST]
            if first >= oldest or words[WORD_SPILL_END] <= first or self.spill is None:
                return [piece for piece in pieces if piece.position >= oldest and piece.data], max(position, oldest)
            cursor = first  # the lapped records are in the spill file now
        return [], cursor

    def _read_ring(self, position: int, head: int, limit: int) -> tuple[list[Piece], int]:
        """Copy records from `position` up to `head`, about `limit` bytes; return them and where to go on."""
        pieces: list[Piece] = []
        taken = 0
        while position < head and taken < limit:
            end = min(head, (position // self.segment_bytes + 1) * self.segment_bytes)
            data = os.pread(self._descriptor, end - position, HEADER_BYTES + position % self.capacity)
            if len(data) < end - position:
                raise ValueError("the ring was truncated")
            whole, complete = self.whole_records(data)
            pieces.append(Piece(position, whole))
            taken += len(data)
            if not complete and end == head:
                position += len(whole)  # not visible yet on this processor: the next call finds it
                break
            position = end
        return pieces, position

    def whole_records(self, data: bytes) -> tuple[bytes, bool]:
        """Cut the padding at a segment's end and anything that is not a record; return whether all was understood."""
        end, complete = records.whole_records(data)
        if not self.checked:
            return data[:end], complete
        position = 0
        while position < end:
            length = records.PAD.unpack_from(data, position)[0]
            body = position + length - records.CHECKSUM.size
            if zlib.crc32(data[position:body]) != records.CHECKSUM.unpack_from(data, body)[0]:
                return data[:position], False
            position += length
        return data[:position], complete


def spill_paths(ring_path: Path, identity: RingIdentity) -> list[Path]:
    """Return the possible paths of a ring's spill: next to the ring, or as its identity has it."""
    other = identity.extra.get("spill")
    beside = ring_path.with_suffix(SPILL_SUFFIX)
    return [beside, Path(other)] if isinstance(other, str) and Path(other).suffix == SPILL_SUFFIX else [beside]


class SpillReader:
    """Reads the spill of a ring: the file that its writer moves undrained segments to when it must reuse their space.

    It holds the positions WORD_SPILL_FROM to WORD_SPILL_END of the ring; the byte at position p is at
    ``p % WORD_SPILL_BYTES``. A drained file is deleted, and the next burst starts a new one with another
    WORD_SPILL_FILE. A missing or cut file costs its rows, and nothing else.
    """

    def __init__(self, paths: list[Path]) -> None:
        """Open nothing yet: few rings ever spill."""
        self._paths = paths
        self._descriptor, self._file = -1, 0

    def read(self, reader: RingReader, cursor: int, limit: int) -> tuple[list[Piece], int]:
        """Return records from `cursor` on, about `limit` bytes, and the next cursor."""
        words = reader.words()
        size, end = words[WORD_SPILL_BYTES], words[WORD_SPILL_END]
        position = max(cursor, words[WORD_SPILL_FROM])
        is_sound = 0 < size <= MOST_SPILL_BYTES and size % reader.segment_bytes == 0 and end - position <= size
        if position >= end or not is_sound or not self._opened(words[WORD_SPILL_FILE]):
            return [], cursor
        pieces: list[Piece] = []
        taken = 0
        while position < end and taken < limit:
            until = min(end, (position // reader.segment_bytes + 1) * reader.segment_bytes)
            data = os.pread(self._descriptor, until - position, position % size)
            pieces.append(Piece(position, reader.whole_records(data)[0]))
            position, taken = until, taken + until - position
        first = reader.words()[WORD_SPILL_FROM]
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


def lock_holder(descriptor: int, byte: int) -> int | None:
    """Return the pid, in our namespace, of the process that holds the POSIX lock on one byte of a file.

    None if there is none, or it is this process; 0 if the holder is in a pid namespace that we cannot see.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(0, pid)
