"""What a reader says of golden files, as plain data that can be compared."""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np

from stepscope.core import ring
from stepscope.core.columns import SchemaTable, decode_entries
from stepscope.core.records import RECORD, heads
from stepscope.store.layout import RunFolder
from stepscope.store.reader import Past


def facts_of(home):
    """Return everything that is read from one version's files; the two forms of the run must say the same."""
    facts = run_facts(home / "tail")
    assert run_facts(home / "sealed") == facts
    return {"run": facts, "ring": ring_facts(home / "ring"), "buckets": bucket_facts(home / "sealed")}


def run_facts(path):
    """Return identity, state, events and every point of a run; points of long series by their hash."""
    past = Past(RunFolder(path))
    points = past.points()
    series = {}
    for code, name in enumerate(points.names):
        part = points.select(points.name == code)
        bits = np.ascontiguousarray(part.value).view(np.int64)
        columns = (part.rank, part.attempt, part.seq, part.step, part.time, bits, part.ns)
        series[name] = _digest([list(row) for row in zip(*(column.tolist() for column in columns), strict=True)])
    assert past.problems() == []
    return {
        "id": past.id,
        "name": past.name,
        "project": past.project,
        "config": past.config,
        "state": past.state,
        "cause": past.cause,
        "attempts": past.attempts,
        "events": past.events(),
        "series": series,
        "summary": _finite(past.summary("loss")),
    }


def ring_facts(path):
    """Return what a ring and its schema file hold."""
    table = SchemaTable()
    for entry in decode_entries((path / "golden.schema").read_bytes())[0]:
        table.add(entry)
    descriptor = os.open(path / "golden.ring", os.O_RDONLY)
    try:
        reader = ring.RingReader(descriptor)
        pieces, cursor = reader.read(0)
        records = [
            [
                schema,
                sequence,
                *RECORD.unpack_from(piece.data, offset)[3:],
                piece.data[offset + 32 : offset + 48].hex(),
            ]
            for piece in pieces
            for offset, _, schema, sequence, _, _ in heads(piece.data)
        ]
        words = [reader.words()[word] for word in (ring.WORD_HEAD, ring.WORD_OLDEST, ring.WORD_STATE)]
        identity = [reader.identity.run_path, reader.identity.rank, reader.identity.wall_ns]
    finally:
        os.close(descriptor)
    names = {str(number): list(schema.names) for number, schema in table.schemas.items()}
    return {"words": words, "identity": identity, "names": names, "cursor": cursor, "records": _digest(records)}


def bucket_facts(path):
    """Return the figures of a series that is read through its pyramid."""
    blocks = Past(RunFolder(path)).series("loss", rank=0, points=2).buckets
    keys = ("count", "nonfinite", "low_step", "high_step", "min", "max", "mean", "last", "min_step", "max_step")
    return {key: getattr(blocks, key).tolist() for key in keys}


def _digest(rows):
    """Return what tells a long table: its length, its first and last row, and a hash of it all."""
    digest = hashlib.sha256(repr(rows).encode()).hexdigest()
    return {"count": len(rows), "sha256": digest, "first": rows[0], "last": rows[-1]}


def _finite(figures):
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in figures.items()
    }
