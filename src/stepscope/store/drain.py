"""Move rows from rings into the tail of the run. A ring has one consumer, and each consumer appends to its own file."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.core import ring
from stepscope.core.columns import RowSchema, SchemaTable, decode_entries, encode_entry, encode_schema
from stepscope.core.line_file import append_lines
from stepscope.core.places import COMPANIONS, SCHEMA_SUFFIX, WAKE_SUFFIX
from stepscope.core.records import FIRST_SCHEMA, NO_STEP, RECORD, SCHEMA_EVENT, WORD_SEQUENCE, groups, payload
from stepscope.core.ring import SpillReader, spill_paths
from stepscope.store import tail
from stepscope.store.events import encode_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from stepscope.store.layout import RunFolder, Writer

OWN_STREAM = 1 << 30
"""Stream number of rows that the watcher itself produces."""
RESERVED = frozenset(("crc", "time", "rank", "attempt", "step", "sequence", "monotonic_ns"))
"""Fields that every event has; a user's field of the same name gets a trailing underscore."""
MOST_OWN_ROWS = 4096
"""Maximum watcher rows that wait while the disk rejects writes; beyond it, the oldest are dropped."""
SEAL_BYTES = 4 << 20
MOST_DECLARED = 1 << 26
"""Maximum bytes of declarations read at once."""
MOST_OWN_SCHEMAS = 1000
"""Maximum sets of names in the watcher's rows; beyond it, each value becomes its own row."""
ClockPair = tuple[int, int]
"""Wall and monotonic time of the same instant, in ns."""


class RingBusyError(Exception):
    """Another process consumes this ring."""


@dataclass
class RingBatch:
    """The result of one read of a ring."""

    pieces: list[bytes]
    events: list[dict[str, Any]]
    cursor: int
    expected: int
    rows: int
    lost: int


class Stream:
    """The consumer's end of one ring."""

    def __init__(self, path: Path, number: int) -> None:
        """Become the only consumer of the ring at `path`; raise RingBusyError if another process is.

        Raises ValueError if this is not a ring or its header is damaged, OSError if it cannot be opened.
        """
        self.path, self.number = path, number
        self._descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._schema_descriptor = -1
        self._spill: SpillReader | None = None
        self._wake: int | None = None
        self.is_behind = False
        """Whether the ring held more than one read returned."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, ring.LOCK_READER)
            self.reader = ring.RingReader(self._descriptor)
            schema_path = path.with_suffix(SCHEMA_SUFFIX)
            self._schema_descriptor = os.open(schema_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except BlockingIOError:
            self.close()
            raise RingBusyError from None
        except (OSError, ValueError):
            self.close()
            raise
        self.identity = self.reader.identity
        self.reader.spill = self._spill = SpillReader(spill_paths(path, self.identity))
        words = self.reader.words()
        self.cursor, self.expected, self.lost = (
            words[word] for word in (ring.WORD_CURSOR, ring.WORD_EXPECTED, ring.WORD_LOST)
        )
        self.table = SchemaTable()
        self._schema_offset = 0

    def fileno(self) -> int:
        """Return the descriptor of the ring."""
        return self._descriptor

    def writer_alive(self) -> bool:
        """Return whether the trainer still holds its lock."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, ring.LOCK_WRITER)
        except OSError:  # held by the trainer
            return True
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, ring.LOCK_WRITER)
        return False

    def waker(self) -> int:
        """Return a descriptor that becomes readable when the trainer wants its ring drained; -1 if there is none."""
        if self._wake is None:
            self._wake = _open_fifo(self.path.with_suffix(WAKE_SUFFIX))
        return self._wake

    def clear_waker(self) -> None:
        """Read the wake-up bytes, so that the waker is no longer readable."""
        if self._wake is not None and self._wake >= 0:
            with contextlib.suppress(BlockingIOError):  # nothing to read: another ring woke us
                os.read(self._wake, 1 << 16)

    def take(self, limit: int = 1 << 20) -> RingBatch:
        """Read new rows without releasing them; `commit` does that once they are on disk."""
        pieces, cursor = self.reader.read(self.cursor, limit)
        batch = RingBatch([piece.data for piece in pieces], [], cursor, self.expected, 0, 0)
        for data in batch.pieces:
            found = groups(data)
            rows = sum(group.size for group in found)
            last = max(group.column(data, WORD_SEQUENCE)[-1] for group in found)
            batch.lost += max(0, last + 1 - batch.expected - rows)
            batch.expected = max(batch.expected, last + 1)
            batch.rows += rows
            events = sorted(at for group in found if group.schema == SCHEMA_EVENT for at in group.offsets())
            batch.events += [_event(data, at, checked=self.reader.checked) for at in events]
        return batch

    def new_declarations(self) -> list[dict[str, Any]]:
        """Return the entries added to the schema file since the last call."""
        size = os.fstat(self._schema_descriptor).st_size - self._schema_offset
        if size <= 0:  # the usual case; a read would allocate a buffer for nothing
            return []
        data = os.pread(self._schema_descriptor, min(size, MOST_DECLARED), self._schema_offset)
        entries, used = decode_entries(data)
        self._schema_offset += used
        for entry in entries:
            self.table.add(entry)
        return entries

    def commit(self, batch: RingBatch) -> None:
        """Release the rows of `batch`: the next consumer of this ring starts after them."""
        self.cursor, self.expected = batch.cursor, batch.expected
        self.lost += batch.lost
        self.reader.set_progress(self.cursor, self.expected, self.lost)

    def empty(self) -> bool:
        """Return whether everything published was committed."""
        return self.cursor >= self.reader.words()[ring.WORD_HEAD]

    def remove(self) -> None:
        """Delete the ring and its companion files: its rows are in the run."""
        spills = spill_paths(self.path, self.identity)  # first: without its ring nothing would ever find the spill
        for path in (*spills, self.path, *map(self.path.with_suffix, COMPANIONS)):
            with contextlib.suppress(FileNotFoundError):  # not every ring has all of them
                path.unlink()

    def close(self) -> None:
        """Stop being the consumer."""
        if self._spill is not None:
            self._spill.close()
        for descriptor in (self._descriptor, self._schema_descriptor, self._wake):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)


def _open_fifo(path: Path) -> int:
    """Return an open FIFO, created if missing; -1 if that is impossible, in which case rows are polled."""
    try:
        with contextlib.suppress(FileExistsError):  # created by the previous consumer
            os.mkfifo(path, 0o600)
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return -1
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return -1


def _event(data: bytes, offset: int, *, checked: bool) -> dict[str, Any]:
    _, _, sequence, moment, step = RECORD.unpack_from(data, offset)
    try:
        fields = dict(json.loads(payload(data, offset, checked=checked)))
    except (ValueError, TypeError):
        fields = {"kind": "unreadable"}
    fields = {f"{key}_" if key in RESERVED else key: value for key, value in fields.items()}
    return {**fields, "step": step, "sequence": sequence, "monotonic_ns": moment}


@dataclass
class OwnRows:
    """Rows that the watcher itself produces: its own cost, and its samples of the machine."""

    rank: int
    sequence: int
    table: SchemaTable = field(default_factory=SchemaTable)
    _schemas: dict[tuple[str, ...], tuple[RowSchema, struct.Struct]] = field(default_factory=dict)
    _fresh: list[bytes] = field(default_factory=list)
    _records: list[bytes] = field(default_factory=list)

    def add(self, values: dict[str, float], now: int) -> None:
        """Queue one row with the monotonic time `now`, in ns, for the next drain."""
        names = tuple(values)
        known = self._schemas.get(names)
        if known is None and len(self._schemas) >= MOST_OWN_SCHEMAS and len(names) > 1:
            for name, value in values.items():  # a source whose names never repeat
                self.add({name: value}, now)
            return
        if known is None:
            schema = RowSchema(FIRST_SCHEMA + len(self._schemas), names, "d" * len(names))
            known = self._schemas[names] = schema, struct.Struct(RECORD.format + schema.kinds)
            self.table.schemas[schema.id] = schema
            self._fresh.append(encode_schema(schema))
        schema, layout = known
        self._records.append(layout.pack(layout.size, schema.id, self.sequence, now, NO_STEP, *values.values()))
        del self._records[:-MOST_OWN_ROWS]
        self.sequence += 1

    def waiting(self) -> bool:
        """Return whether a row waits to be written."""
        return bool(self._records)

    def queued(self) -> tuple[bytes, bytes]:
        """Return the declarations and the records queued since the last `written`."""
        return b"".join(self._fresh), b"".join(self._records)

    def written(self) -> None:
        """Clear the queue: its rows are on disk."""
        self._fresh, self._records = [], []


class Drain:
    """Append the rows of streams to the tail of one writer, which the first row opens, and events to its own file."""

    def __init__(
        self, folder: RunFolder, writer: Writer, own: OwnRows, open_tail: Callable[[str], tail.TailFile] = tail.TailFile
    ) -> None:
        self.folder, self.writer, self.own = folder, writer, own
        self.file: tail.TailFile | None = None
        self.number = -1
        self.record_bytes = 0
        """Bytes of records in the current file, without declarations, which may be larger than the records."""
        self._open_tail = open_tail
        self._declared: set[int] = set()
        self._last_event: dict[int, int] = {}
        """Sequence of the last event written, by stream: it is not written twice while the tail is rejected."""
        self.seal_bytes = SEAL_BYTES
        """Bytes of records after which a file is closed, because sealing holds the whole file in memory."""
        self.closed: Callable[[int], None] | None = None
        """Called with the number of a file that was closed because it was long enough."""
        self.heard: Callable[[list[dict[str, Any]], int, int], None] | None = None
        """Called after events were written, with the events, the rank and the time of writing (monotonic ns)."""

    def once(self, stream: Stream, pair: ClockPair, limit: int = 1 << 20) -> RingBatch:
        """Move new rows of `stream` to disk; on OSError nothing is committed and nothing is lost."""
        batch = stream.take(limit)
        entries = stream.new_declarations()
        try:
            if batch.pieces:
                self._move(stream, batch, entries, pair)
            elif entries and stream.number in self._declared and self.file is not None:
                self.file.append(_declarations(stream.number, map(encode_entry, entries)))
        except OSError:
            self._declared.discard(stream.number)  # declarations that did not reach the file are repeated
            raise
        if batch.cursor != stream.cursor:
            stream.commit(batch)
        return batch

    def _move(self, stream: Stream, batch: RingBatch, entries: list[dict[str, Any]], pair: ClockPair) -> None:
        if self.record_bytes >= self.seal_bytes:
            number = self.rotate()
            if number is not None and self.closed is not None:
                self.closed(number)
        file = self._writable(pair)
        frames: list[bytes] = []
        if stream.number not in self._declared:
            frames += self._introduce(stream)
        elif entries:
            frames += _declarations(stream.number, map(encode_entry, entries))
        frames += [tail.encode(tail.KIND_RECORDS, stream.number, data) for data in batch.pieces]
        fresh = [event for event in batch.events if event["sequence"] > self._last_event.get(stream.number, -1)]
        if fresh:
            last = fresh[-1]["sequence"]
            self.write_events(fresh, stream.identity.rank, pair)
            self._last_event[stream.number] = last
        file.append(frames)
        self._declared.add(stream.number)
        self.record_bytes += sum(map(len, batch.pieces))

    def write_own(self, pair: ClockPair) -> None:
        """Write the watcher's own rows, and a clock pair for all ranks."""
        file = self._writable(pair)
        fresh, records = self.own.queued()
        frames = [tail.encode(tail.KIND_CLOCK, 0, tail.CLOCK.pack(*pair))]
        if OWN_STREAM not in self._declared:
            facts = {"rank": self.own.rank, "attempt": self.writer.attempt}
            frames += [tail.encode(tail.KIND_STREAM, OWN_STREAM, json.dumps(facts).encode())] * 2
            fresh = b"".join(self.own.table.entries())
        if fresh:
            frames += [tail.encode(tail.KIND_SCHEMAS, OWN_STREAM, fresh)] * 2
        if records:
            frames.append(tail.encode(tail.KIND_RECORDS, OWN_STREAM, records))
        file.append(frames)
        self.record_bytes += len(records)
        self.own.written()
        self._declared.add(OWN_STREAM)

    def write_events(self, events: list[dict[str, Any]], rank: int, pair: ClockPair, *, sync: bool = False) -> None:
        """Append events to the events file with their wall time; flushed to disk if `sync`."""
        if self.heard is not None:
            self.heard(events, rank, pair[1])
        lines = []
        for event in events:
            moment = event.pop("monotonic_ns", pair[1])
            when = (pair[0] + moment - pair[1]) // 1000
            lines.append(encode_event({"time": when, "rank": rank, "attempt": self.writer.attempt, **event}))
        path = self.folder.events_file(self.writer)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            append_lines(descriptor, b"".join(lines), sync=sync)
        finally:
            os.close(descriptor)

    def rotate(self) -> int | None:
        """Close the current tail file and return its number; the next row opens a new one."""
        if self.file is None:
            return None
        self.sync()
        self.file.close()
        self.file, self.record_bytes = None, 0
        return self.number

    def sync(self) -> None:
        """Make written rows survive a power loss; after a failure, continue in a new file."""
        if self.file is None:
            return
        try:
            self.file.sync()
        except OSError:
            self.file.close()  # the kernel does not retry a page that failed to reach the disk
            self.file = None
            raise

    def _writable(self, pair: ClockPair) -> tail.TailFile:
        if self.file is not None and self.file.broken:
            self.file.close()
            self.file = None
        if self.file is None:
            number = max(self.folder.next_tail(self.writer), self.number + 1)
            self.file = self._open_tail(str(self.folder.tail_file(self.writer, number)))
            self.number, self._declared, self.record_bytes = number, set(), 0
            self.file.append([tail.encode(tail.KIND_CLOCK, 0, tail.CLOCK.pack(*pair))])
        return self.file

    def _introduce(self, stream: Stream) -> list[bytes]:
        """Return frames that identify the stream's writer and declare all its columns so far."""
        facts = {key: getattr(stream.identity, key) for key in ("rank", "attempt", "wall_ns", "monotonic_ns")}
        facts |= {ring.FOLLOWED: True} if stream.identity.extra.get(ring.FOLLOWED) else {}
        text = json.dumps({**facts, "checked": stream.reader.checked}).encode()
        frames = [tail.encode(tail.KIND_STREAM, stream.number, text)] * 2
        return frames + _declarations(stream.number, stream.table.entries())


def _declarations(number: int, entries: Iterable[bytes]) -> list[bytes]:
    """Return the frames of declarations, each twice, so that one damaged frame costs only its own rows."""
    return [tail.encode(tail.KIND_SCHEMAS, number, entry) for entry in entries for _ in (1, 2)]
