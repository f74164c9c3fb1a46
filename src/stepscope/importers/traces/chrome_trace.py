"""Read Chrome traces, as written by PyTorch's profiler (Kineto) and similar tools of every vendor."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.core.trace import ABSENT, Lane, Memory, Sparse, Trace
from stepscope.importers.traces.columns import TraceBuilder, whole
from stepscope.importers.traces.events import NUMBERS, TEXTS, Text, batches
from stepscope.importers.traces.text import BadTrace, TraceLimits, TraceSource, pieces, sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.importers.traces.text import Progress


REMEDY = "give a trace that the profiler has finished writing (.json or .json.gz), or record a shorter one"
RANK_IN_NAME = re.compile(r"(?:^|[^a-zA-Z])(?:rank|worker|tp)[-_ ]?(\d{1,6})(?![0-9a-zA-Z])", re.IGNORECASE)
PREEXISTING, CREATED, DESTROYED = 1, 2, 4
"""Actions in the rows of a memory timeline (`export_memory_timeline`, raw form)."""


def read_trace(
    path: str | os.PathLike[str], *, limits: TraceLimits | None = None, progress: Progress | None = None
) -> Trace:
    """Read the first trace in a file.

    Args:
        path: the file: JSON, plain or gzip, or a tar or zip archive of these.
        limits: how far reading may go.
        progress: called with the bytes read and the size of the file, about every 4 MiB of text.

    Raises:
        StepscopeError: the file cannot be read, or is not a trace, or is beyond a limit.
    """
    for trace in read_traces(path, limits=limits, progress=progress):
        return trace
    raise StepscopeError(f"read the trace '{os.fspath(path)}'", "there is no .json file in it", REMEDY)


def read_traces(
    path: str | os.PathLike[str], *, limits: TraceLimits | None = None, progress: Progress | None = None
) -> Iterator[Trace]:
    """Yield every trace in a file, one after the other; see `read_trace`."""
    name = os.fspath(path)
    try:
        for source in sources(name):
            yield _read(source, limits or TraceLimits(), progress)
    except (BadTrace, OSError, MemoryError) as error:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "memory is short"
        raise StepscopeError(f"read the trace '{name}'", cause, REMEDY) from error


def _read(source: TraceSource, limits: TraceLimits, progress: Progress | None) -> Trace:
    facts: dict[str, Any] = {}
    builder = TraceBuilder(limits)
    for batch in batches(Text(pieces(source, limits, progress), limits.value_bytes), facts):
        builder.add(batch)
    if "rows" in facts:
        return _memory_timeline(_trace(source.name, builder, {}), facts["rows"])
    if not len(builder.table) and not builder.memory and not facts.pop("traceEvents", False):
        raise BadTrace("it is JSON, but holds no trace events")
    facts.pop("traceEvents", None)
    return _trace(source.name, builder, facts)


def _trace(file: str, builder: TraceBuilder, facts: dict[str, Any]) -> Trace:
    """Assemble the columns, ordered by start, outer events before inner ones."""
    lanes = builder.lane_list()
    names = ["" if name is None else str(name)[:2000] for name in builder.names]
    kind = builder.kinds(lanes, names)
    table = builder.table
    rare = table.sparse()
    start, end = table.take("start"), table.take("end")
    origin = int(start.min()) if len(start) else 0
    start -= origin
    end -= origin
    order = _order(start, end)
    columns = {"start": start, "end": end, "kind": kind}
    del start, end, kind
    for key in ("name", "lane", "correlation", "external"):
        columns[key] = table.take(key)
    if order is not None:
        for key in columns:
            columns[key] = columns[key][order]
        place = np.empty(len(order), order.dtype)
        place[order] = np.arange(len(order), dtype=order.dtype)
        rare = _moved(rare, place)
    info = facts["distributedInfo"] if isinstance(facts.get("distributedInfo"), dict) else {}
    return Trace(
        file=file,
        rank=_rank(info, facts, file),
        names=names,
        words=list(builder.words),
        lanes=lanes,
        memory=builder.memory_table(origin),
        numbers={key: rare[key] for key in NUMBERS.values() if key in rare},
        texts={key: rare[key] for key in TEXTS.values() if key in rare},
        origin=origin,
        base=max(0, whole(facts.get("baseTimeNanoseconds"))),
        world_size=None if (size := whole(info.get("world_size"))) == ABSENT else size,
        facts=facts,
        thinned=builder.dropped > 0,
        notes=_notes(builder),
        **columns,
    )


def _order(start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any] | None:
    """Return the order by start, then longest first; None if it is already so."""
    same = start[1:] == start[:-1]
    if bool(np.all((start[1:] > start[:-1]) | (same & (end[1:] <= end[:-1])))):
        return None
    return np.lexsort((-end, start)).astype(np.int32)


def _moved(group: dict[str, Sparse], place: NDArray[Any]) -> dict[str, Sparse]:
    moved = {}
    for key, one in group.items():
        rows = place[one.rows]
        order = np.argsort(rows, kind="stable")
        moved[key] = Sparse(rows[order], one.values[order])
    return moved


def _rank(info: dict[str, Any], facts: dict[str, Any], file: str) -> int | None:
    for value in (info.get("rank"), facts.get("rank")):
        if isinstance(value, (int, str)) and (rank := whole(value)) >= 0:
            return rank
    found = RANK_IN_NAME.search(os.path.basename(file))
    return int(found[1]) if found else None


def _notes(builder: TraceBuilder) -> tuple[str, ...]:
    unended = builder.unpaired + sum(map(len, builder.open.values()))
    longest = max(builder.shortest.values(), default=0)
    notes = [
        (builder.dropped, f"short host events (up to {longest / 1000:g} µs) were left out to bound memory"),
        (builder.cut, "events after these were left out to bound memory: the window ends before them"),
        (builder.untimed, "events without a usable time were left out"),
        (unended, "events with a beginning or an end only were left out"),
        (len(builder.names) >= builder.limits.texts, "names beyond the limit are shown as (other)"),
    ]
    return tuple(f"{int(count)} {text}" for count, text in notes if count)


def _memory_timeline(empty: Trace, rows: Any) -> Trace:
    """Fill a trace with the raw form of a memory timeline: rows of time, action, bytes, category."""
    kept = [row for row in rows if isinstance(row, list) and len(row) >= 3 and all(isinstance(x, int) for x in row[:3])]
    if not kept:
        raise BadTrace("it is JSON, but neither a trace nor a memory timeline")
    table = np.array([[whole(value) for value in row[:3]] for row in kept], np.int64)
    table = table[np.isin(table[:, 1], (PREEXISTING, CREATED, DESTROYED))]
    first = int(table[table[:, 0] >= 0, 0].min(initial=np.iinfo(np.int64).max)) if len(table) else 0
    origin = 0 if first == np.iinfo(np.int64).max else first
    time = np.maximum(table[:, 0] - origin, 0)
    size = np.where(table[:, 1] == DESTROYED, -np.abs(table[:, 2]), table[:, 2])
    absent = np.full(len(table), ABSENT, np.int64)
    order = np.argsort(time, kind="stable")
    device = np.zeros(len(table), np.int32)
    memory = Memory(time[order], size[order], absent, np.cumsum(size[order]), absent, device, device)
    notes = ("it is a memory timeline: it holds allocations, and no events",)
    return replace(empty, lanes=[Lane(0, 0, "memory timeline", "", 0)], memory=memory, origin=origin, notes=notes)
