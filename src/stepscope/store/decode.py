"""Decode tail files into points. Truncated or damaged parts are skipped and reported; the rest is exact."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.clock import WallMap
from stepscope.core.columns import SchemaTable, decode_entries
from stepscope.core.records import HEAD_WORDS, SCHEMA_EVENT, SCHEMA_PAIRS, WORD_SEQUENCE, RecordArray, groups, words_of
from stepscope.core.ring import FOLLOWED
from stepscope.store import tail
from stepscope.store.points import NO_NS, Points

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class _Stream:
    """One stream of a tail file during decoding."""

    facts: dict[str, Any] | None = None
    table: SchemaTable = field(default_factory=SchemaTable)
    starts: dict[tuple[int, int], list[NDArray[np.int64]]] = field(default_factory=lambda: defaultdict(list))
    """Where the records of each (schema id, length in words) start, in words of the file."""


@dataclass
class Decoded:
    """The points of some tails, the highest sequence of each rank, and what could not be read."""

    points: Points
    last_seq: dict[int, int]
    damaged_bytes: int = 0
    torn_bytes: int = 0
    """Bytes at the end that are not a complete frame: an unfinished or truncated write."""
    unknown_records: int = 0
    unknown_frames: int = 0
    """Frames of an unknown kind (a later version may have added it), or of an undescribed stream."""
    records: int = 0

    def problems(self, file: str) -> list[str]:
        """Describe what could not be read in `file`."""
        kinds = (
            (self.damaged_bytes, "damaged bytes"),
            (self.unknown_records, "rows of unknown columns"),
            (self.unknown_frames, "blocks of an unknown kind"),
        )
        return [f"{file}: {count} {what} were passed over" for count, what in kinds if count]


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
            if "wall_ns" in facts and not facts.get(FOLLOWED):
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


def _scan(data: bytes, frame: tail.TailFrame, stream: _Stream, last: dict[int, int]) -> None:
    """Add where the new records of a frame start: those whose sequence is above that of every record before."""
    rank = (stream.facts or {})["rank"]
    newest = last.get(rank, -1)
    body = data[frame.start : frame.end]
    kinds = groups(body)
    if not kinds:
        return
    parts = [np.arange(kind.offset, kind.offset + kind.size * kind.stride, kind.stride) // 8 for kind in kinds]
    starts = np.concatenate(parts)
    sequence = words_of(body)[starts + WORD_SEQUENCE]
    order = np.argsort(starts)
    before = np.maximum.accumulate(np.concatenate([[newest], sequence[order]]))
    is_new = np.empty(len(order), bool)
    is_new[order] = sequence[order] > before[:-1]
    ends = np.cumsum([kind.size for kind in kinds])[:-1]
    for kind, part, new in zip(kinds, parts, np.split(is_new, ends), strict=True):
        stream.starts[kind.schema, kind.length // 8].append(part[new] + frame.start // 8)
    last[rank] = int(before[-1])


def _columns(data: bytes, streams: dict[int, _Stream], pairs: list[tuple[int, int]], result: Decoded) -> Decoded:
    words = words_of(data)
    shared = WallMap(pairs or [(0, 0)])
    parts = []
    for stream in streams.values():
        facts = stream.facts or {}
        # The times of a run that another tool records are not those of our clocks.
        wall = WallMap([(facts["wall_ns"], facts["monotonic_ns"])]) if facts.get(FOLLOWED) else shared
        for (schema, length), starts in stream.starts.items():
            records = RecordArray(words, np.sort(np.concatenate(starts)))
            count = len(records.step)
            result.records += count
            if schema == SCHEMA_EVENT or not count:
                continue
            values = _values(records, schema, length - HEAD_WORDS - bool(facts.get("checked")), stream.table)
            if values is None:
                result.unknown_records += count
                continue
            names, name, value, ns = values
            width = len(value) // count
            parts.append(
                Points(
                    names,
                    name,
                    np.full(len(value), facts["rank"], np.int32),
                    np.full(len(value), facts["attempt"], np.int32),
                    np.repeat(records.sequence, width),
                    np.repeat(records.step, width),
                    np.repeat(wall.to_wall_us_array(records.time_ns, np), width),
                    value,
                    ns,
                )
            )
    result.points = Points.concat(parts) if parts else Points.empty()
    return result


_Values = tuple[list[str], "NDArray[np.int32]", "NDArray[np.float64]", "NDArray[np.int64]"]


def _values(records: RecordArray, schema: int, width: int, table: SchemaTable) -> _Values | None:
    """Return names, name index, value and duration of records with `width` words each; None if nothing declares them.

    Of rows of pairs the names are those of the whole table.
    """
    if schema == SCHEMA_PAIRS:
        name, value = records.pairs(width // 2)
        if len(name) and (name.max() >= len(table.names) or name.min() < 0):
            return None
        return table.names, name.astype(np.int32), value, np.full(len(value), NO_NS, np.int64)
    declared = table.schemas.get(schema)
    if declared is None or len(declared.names) != width:
        return None
    raw = records.raw(np.arange(width)).ravel()
    value = raw.view(np.float64).copy()
    ns = np.full(len(raw), NO_NS, np.int64)
    duration = np.tile(np.array([kind == "q" for kind in declared.kinds]), len(records.step))
    ns[duration] = raw[duration]
    value[duration] = raw[duration] / 1e9
    return list(declared.names), np.tile(np.arange(width, dtype=np.int32), len(records.step)), value, ns
