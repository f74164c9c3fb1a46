"""Decode tail files into points. Truncated or damaged parts are skipped and reported; the rest is exact."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core import ring
from stepscope.core.clock import WallMap
from stepscope.core.columns import Schema, SchemaTable, decode_entries
from stepscope.store import tail
from stepscope.store.points import NO_NS, Points

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORD_WORDS = ring.RECORD.size // 8


@dataclass
class _Stream:
    """One stream of a tail file during decoding."""

    facts: dict[str, Any] | None = None
    table: SchemaTable = field(default_factory=SchemaTable)
    offsets: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    """Start of the records of each (schema id, length in words), in words of the file."""


@dataclass
class Decoded:
    """The points of some tails, the highest sequence of each rank, and what could not be read."""

    points: Points
    last_seq: dict[int, int]
    damaged_bytes: int = 0
    torn_bytes: int = 0
    """Bytes at the end that are not a whole frame: an unfinished or truncated write."""
    unknown_records: int = 0
    unknown_frames: int = 0
    """Frames of an unknown kind (a later version may have added it), or of an undescribed stream."""
    records: int = 0

    def problems(self, file: str) -> list[str]:
        """Describe what could not be read in `file`."""
        found = []
        if self.damaged_bytes:
            found.append(f"{file}: {self.damaged_bytes} damaged bytes were passed over")
        if self.unknown_records:
            found.append(f"{file}: {self.unknown_records} rows of unknown columns were passed over")
        if self.unknown_frames:
            found.append(f"{file}: {self.unknown_frames} blocks of an unknown kind were passed over")
        return found


def decode_tail(data: bytes, seen: dict[int, int] | None = None) -> Decoded:
    """Decode one tail file, without records whose sequence is not above `seen[rank]`: they were read before."""
    last = dict(seen or {})
    streams: dict[int, _Stream] = defaultdict(_Stream)
    pairs: list[tuple[int, int]] = []
    damaged = torn = unknown = 0
    for frame in tail.decode(data):
        damaged, torn = damaged + torn, 0
        if isinstance(frame, int):
            torn = frame
        elif frame.kind == tail.KIND_CLOCK:
            pairs.append(tail.CLOCK.unpack_from(data, frame.start))
        elif frame.kind == tail.KIND_STREAM:
            facts = streams[frame.stream].facts = json.loads(data[frame.start : frame.end])
            if "wall_ns" in facts:
                pairs.append((facts["wall_ns"], facts["monotonic_ns"]))
        elif frame.kind == tail.KIND_SCHEMAS:
            for entry in decode_entries(data[frame.start : frame.end])[0]:
                streams[frame.stream].table.add(entry)
        elif frame.kind == tail.KIND_RECORDS and streams[frame.stream].facts is not None:
            _scan(data, frame, streams[frame.stream], last)
        else:
            unknown += 1
    if torn and not tail.is_unfinished(data[len(data) - torn :]):
        damaged, torn = damaged + torn, 0
    return _columns(data, streams, pairs, Decoded(Points.empty(), last, damaged, torn, unknown_frames=unknown))


def _scan(data: bytes, frame: tail.Frame, stream: _Stream, last: dict[int, int]) -> None:
    """Record where the new records of a frame start."""
    rank = (stream.facts or {})["rank"]
    newest = last.get(rank, -1)
    unpack, offsets = ring.RECORD.unpack_from, stream.offsets
    position = frame.start
    while position + ring.RECORD.size <= frame.end:
        length, schema, sequence, _, _ = unpack(data, position)
        if length < ring.RECORD.size or position + length > frame.end:
            break
        if sequence > newest:
            newest = sequence
            offsets[schema, length >> 3].append(position >> 3)
        position += length
    last[rank] = newest


def _columns(data: bytes, streams: dict[int, _Stream], pairs: list[tuple[int, int]], result: Decoded) -> Decoded:
    words = np.frombuffer(data, "<i8", len(data) // 8)
    wall = WallMap(pairs or [(0, 0)])
    parts = []
    for stream in streams.values():
        for (number, length), offsets in stream.offsets.items():
            result.records += len(offsets)
            if number == ring.SCHEMA_EVENT:
                continue
            at = np.array(offsets, np.int64)
            part = _part(words, at, number, length, stream)
            if part is None:
                result.unknown_records += len(offsets)
                continue
            names, name, value, ns, width = part
            facts = stream.facts or {}
            parts.append(
                Points(
                    names,
                    name,
                    np.full(len(value), facts["rank"], np.int32),
                    np.full(len(value), facts["attempt"], np.int32),
                    np.repeat(words[at + 1], width),
                    np.repeat(words[at + 3], width),
                    np.repeat(wall.to_wall_us_array(words[at + 2], np), width),
                    value,
                    ns,
                )
            )
    result.points = Points.concat(parts) if parts else Points.empty()
    return result


_Part = tuple[list[str], "NDArray[np.int32]", "NDArray[np.float64]", "NDArray[np.int64]", int]


def _part(words: NDArray[np.int64], at: NDArray[np.int64], number: int, length: int, stream: _Stream) -> _Part | None:
    """Return names, name index, value and duration of the records at `at`, and how many values each has."""
    width = length - RECORD_WORDS - bool((stream.facts or {}).get("checked"))
    if number == ring.SCHEMA_PAIRS:
        return _pairs(words, at, width // 2, stream.table.names)
    schema = stream.table.schemas.get(number)
    return None if schema is None or len(schema.names) != width else _rows(words, at, schema)


def _rows(words: NDArray[np.int64], at: NDArray[np.int64], schema: Schema) -> _Part:
    width = len(schema.names)
    raw = words[(at[:, None] + np.arange(RECORD_WORDS, RECORD_WORDS + width)).ravel()]
    value = raw.view(np.float64).copy()
    ns = np.full(len(raw), NO_NS, np.int64)
    duration = np.tile(np.array([kind == "q" for kind in schema.kinds]), len(at))
    ns[duration] = raw[duration]
    value[duration] = raw[duration] / 1e9
    return list(schema.names), np.tile(np.arange(width, dtype=np.int32), len(at)), value, ns, width


def _pairs(words: NDArray[np.int64], at: NDArray[np.int64], width: int, names: list[str]) -> _Part | None:
    base = (at[:, None] + RECORD_WORDS + 2 * np.arange(width)).ravel()
    name = words[base]
    if len(name) and (name.max() >= len(names) or name.min() < 0):
        return None
    value = words[base + 1].view(np.float64)
    return names, name.astype(np.int32), value, np.full(len(value), NO_NS, np.int64), width
