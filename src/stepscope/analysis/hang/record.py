"""What PyTorch's flight recorder of one rank holds: process groups, and the collectives that it enqueued."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepscope.analysis.hang.batches import merged
from stepscope.analysis.hang.operation import GLOO, GroupStatus, RecordedOp

MOST_ENTRIES, MOST_GROUPS, MOST_MEMBERS = 20_000, 4096, 1 << 20
"""Maximum entries and groups of one record, and ranks of all its groups; the recorder itself keeps 2000 entries."""
MOST_SIZES, MOST_DIMS, MOST_TEXT = 64, 16, 400
"""Tensors of an entry, dimensions of each, and characters of a text that are read."""
MOST_FRAMES = 24
"""Frames kept of an entry, innermost first."""
MOST_BYTES = 256 << 10
"""Maximum bytes of a record as JSON."""


@dataclass(frozen=True)
class RecordedGroup:
    """A process group as one rank knows it."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    """Its members, as numbers of the whole job, in the order of the group."""


@dataclass(frozen=True)
class FlightRecord:
    """The flight recorder of one rank."""

    version: str = ""
    groups: tuple[RecordedGroup, ...] = ()
    entries: tuple[RecordedOp, ...] = ()
    """Oldest first."""
    status: Mapping[int, GroupStatus] = field(default_factory=dict)
    """By the number of the group in this process."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> FlightRecord:
        """Read a dump, as a dict with torch's keys; what is not as torch writes it is left out."""
        version = facts.get("version")
        groups = _groups(facts.get("pg_config"))
        rows = facts.get("entries")
        status = {
            int(number): GroupStatus(*(_whole(one.get(f"last_{what}_collective"), -1) for what in _STATUS))
            for number, one in _items(facts.get("pg_status"))
            if _is_number(number) and isinstance(one, Mapping)
        }
        kept = rows[-MOST_ENTRIES:] if isinstance(rows, (list, tuple)) else ()
        entries = [_op(row, status) for row in kept if isinstance(row, Mapping) and _text(row.get("profiling_name"))]
        return cls(
            version if isinstance(version, str) else "",
            groups,
            tuple(merged(sorted(entries, key=lambda entry: entry.number), status)),
            status,
        )

    @classmethod
    def of_json(cls, text: str) -> FlightRecord:
        """Read a dump or a `compact` record as JSON; ValueError if it is none."""
        facts = json.loads(text)
        if not isinstance(facts, dict) or ("entries" not in facts and "pg_config" not in facts):
            raise ValueError("not a record of the flight recorder")
        return cls.of(facts)


def compact(facts: Mapping[str, Any], most_bytes: int = MOST_BYTES) -> str:
    """Return a dump as JSON for `FlightRecord.of_json`, in at most so many bytes; the newest entries are kept."""
    head = {key: facts[key] for key in ("version", "pg_config", "pg_status") if key in facts}
    rows = facts.get("entries")
    base = _encoded({**head, "entries": []}, most_bytes)
    if base is None:
        return '{"entries":[]}'
    left = most_bytes - len(base)
    kept: list[str] = []
    for row in reversed(rows if isinstance(rows, (list, tuple)) else ()):
        if not isinstance(row, Mapping):
            continue
        text = _encoded({key: row[key] for key in _KEPT if key in row}, left - 1)
        if text is None:
            break
        left -= len(text) + 1
        kept.append(text)
    return base[:-2] + ",".join(reversed(kept)) + "]}"


def _encoded(value: Any, most: int) -> str | None:
    """Return a value as JSON; None if that is longer, without making all of it: a list may hold itself twice, often."""
    parts: list[str] = []
    for part in _JSON.iterencode(value):
        parts.append(part)
        most -= len(part)
        if most < 0:
            return None
    return "".join(parts)


_JSON = json.JSONEncoder(separators=(",", ":"))
_STATUS = ("enqueued", "started", "completed")
_KEPT = (
    *("record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "profiling_name", "time_created_ns"),
    *("input_sizes", "input_dtypes", "state", "time_discovered_started_ns", "retired", "is_p2p"),
    "frames",
)


def _groups(config: Any) -> tuple[RecordedGroup, ...]:
    found, left = [], MOST_MEMBERS  # in a pickle of a few KiB, thousands of groups may share one long list
    for name, one in _items(config)[:MOST_GROUPS]:
        if not isinstance(one, Mapping):
            continue
        ranks = one.get("ranks")
        if isinstance(ranks, str):  # "[0, 1, 2]"
            ranks = ranks[: 8 * left].strip("[] ").split(",")
        members = [int(rank) for one in _row(ranks)[:left] if _is_number(rank := _stripped(one))]
        left -= len(_row(ranks)[:left])
        found.append(RecordedGroup(_text(name), _text(one.get("desc")), tuple(members)))
    return tuple(found)


def _op(row: Mapping[str, Any], status: Mapping[int, GroupStatus]) -> RecordedOp:
    called = row.get("process_group")
    name, description = (*_row(called), "", "")[:2] if not isinstance(called, str) else (called, "")
    backend, _, operation = _text(row.get("profiling_name")).rpartition(":")
    number, collective = _whole(row.get("pg_id"), -1), _whole(row.get("collective_seq_id", row.get("seq_id")), 0)
    is_p2p = row.get("is_p2p") is True or operation.startswith(("send ", "recv "))
    state, retired = row.get("state"), row.get("retired") is True
    known = status.get(number, GroupStatus())
    started = _whole(row.get("time_discovered_started_ns"), 0) > 0
    # gloo never sets a state: what it has stopped watching is done. NCCL also gives up what took too long.
    done = state == "completed" or (retired and (backend == GLOO or (not is_p2p and collective <= known.completed)))
    return RecordedOp(
        group=_text(name),
        name=operation,
        backend=backend,
        description=_text(description),
        group_number=number,
        collective=collective,
        p2p=_whole(row.get("p2p_seq_id"), 0),
        number=_whole(row.get("record_id", row.get("id")), 0),
        is_p2p=is_p2p,
        is_done=done,
        is_started=done or started or state == "started",
        created=_whole(row.get("time_created_ns"), 0) / 1e9,
        sizes=_sizes(row.get("input_sizes")),
        dtypes=tuple(map(_text, _row(row.get("input_dtypes"))[:MOST_SIZES])),
        frames=_frames(row.get("frames")),
    )


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    rows = [size[:MOST_DIMS] for size in _row(value)[:MOST_SIZES] if isinstance(size, (list, tuple))]
    return tuple(tuple(_whole(dim, 0) for dim in size) for size in rows)


def _row(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, (list, tuple)) else ()


def _text(value: Any) -> str:
    return value[:MOST_TEXT] if isinstance(value, str) else ""


def _frames(value: Any) -> tuple[Mapping[str, Any], ...]:
    rows = _row(value)[:MOST_FRAMES]
    return tuple(
        {
            "file": _text(row.get("filename") or row.get("file")),
            "line": _whole(row.get("line"), 0),
            "function": _text(row.get("name") or row.get("function")),
        }
        for row in rows
        if isinstance(row, Mapping)
    )


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) < 19 and value.isascii() and value.isdecimal()
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _whole(value: Any, instead: int) -> int:
    if isinstance(value, str):
        return int(value) if _is_number(value.removeprefix("-")) else instead
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else instead
