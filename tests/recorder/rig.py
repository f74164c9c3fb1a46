"""A recorder on a ring of its own, without a run or a watcher, and what can be read out of that ring."""

from __future__ import annotations

import fcntl
import io
import json
import os
import struct

from stepscope.core import ring
from stepscope.core.columns import SchemaTable, decode_entries
from stepscope.core.records import RECORD, SCHEMA_PAIRS, heads
from stepscope.core.ring import SpillReader
from stepscope.recorder.complaints import Complaints
from stepscope.recorder.declarations import Declarations
from stepscope.recorder.intake import Intake
from stepscope.recorder.mapping import create
from stepscope.recorder.overflow import Overflow
from stepscope.session.run import Run

RING_BYTES = ring.HEADER_BYTES + 64 * 1024
"""64 segments of 1024 bytes."""


def identity_of(folder, rank=0, attempt=0, **more):
    facts = {
        "run_path": str(folder / "run"),
        "rank": rank,
        "attempt": attempt,
        "node_rank": 0,
        "pid": os.getpid(),
        "boot_id": "boot",
        "wall_ns": 1_700_000_000_000_000_000,
        "monotonic_ns": 0,
        "schema_path": "",
    }
    return ring.RingIdentity(**{**facts, **more})


def peek(path):
    """Return the words of a ring's header and its identity, leaving nothing open."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        reader = ring.RingReader(descriptor)
        return reader.words(), reader.identity
    finally:
        os.close(descriptor)


class Rig:
    """A run that records into `folder`; `rows()` is what its ring holds."""

    def __init__(
        self, folder, ring_bytes=RING_BYTES, machine="x86_64", max_names=10**6, identity=None, spill=None, **intake
    ):
        self.path = folder / f"{os.urandom(4).hex()}.ring"
        self.mapping = create(self.path, ring_bytes, identity or identity_of(folder), machine)
        self.schema = self.path.with_suffix(".schema")
        descriptor = os.open(self.schema, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.said = io.StringIO()
        self.declarations = Declarations(self.mapping, descriptor, max_names)
        self.intake = Intake(self.declarations, Complaints(self.said), **intake)
        self.run = Run(self.mapping, self.intake)
        self.descriptor = os.open(self.path, os.O_RDWR)
        self.reader = ring.RingReader(self.descriptor)
        self.spill = self.path.with_suffix(".spill")
        if spill is not None:
            self.run.overflow = Overflow(self.mapping, spill, lambda: [self.spill], self.path.with_suffix(".wake"))
            self.reader.spill = SpillReader([self.spill])

    def close(self):
        """Close everything; once is enough."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.intake.close(self.run)
            self.mapping.close()

    def __del__(self):
        if hasattr(self, "reader"):
            self.close()

    def unlock(self):
        """Give up the writer's lock: another process is to hold it."""
        fcntl.lockf(self.mapping.descriptor, fcntl.LOCK_UN, 1, ring.LOCK_WRITER)

    @property
    def refused(self):
        return self.reader.words()[ring.WORD_REFUSED]

    def complaints(self):
        return dict(self.intake.complaints.counts)

    def table(self):
        table = SchemaTable()
        for entry in decode_entries(self.schema.read_bytes())[0]:
            table.add(entry)
        return table

    def records(self):
        """Return (schema id, sequence, time in ns, step, payload) of every record that is still there."""
        found, cursor = [], 0
        while True:
            pieces, after = self.reader.read(cursor)
            for piece in pieces:
                for offset, _, schema, sequence, _, _ in heads(piece.data):
                    length, _, _, now, step = RECORD.unpack_from(piece.data, offset)
                    end = offset + length - self.mapping.overhead
                    found.append((schema, sequence, now, step, piece.data[offset + RECORD.size : end]))
            if after == cursor:
                return found
            cursor = after

    def rows(self):
        """Return (step, values) of every row of numbers, durations in ns."""
        table = self.table()
        return [
            (step, _values(table, schema, payload)) for schema, _, _, step, payload in self.records() if schema != 3
        ]

    def events(self):
        """Return (step, fields) of every event."""
        return [(step, json.loads(payload)) for schema, _, _, step, payload in self.records() if schema == 3]


def _values(table, schema, payload):
    if schema == SCHEMA_PAIRS:
        return {table.names[number]: value for number, value in struct.iter_unpack("<Qd", payload)}
    found = table.schemas[schema]
    return dict(zip(found.names, struct.unpack(f"<{found.kinds}", payload), strict=True))
