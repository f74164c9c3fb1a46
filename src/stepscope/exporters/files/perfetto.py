"""Write a part of a trace as a small, valid Chrome trace that ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.trace.breakdown import busy_time
from stepscope.analysis.trace.window import GPU, STEPS, TraceWindow, gaps, steps, window_of
from stepscope.core.trace import FIRST_DEVICE, RUNTIME, Trace
from stepscope.exporters.files.output import open_output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


MOST_EVENTS = 200_000
"""Events that are written: as many as a viewer opens at once."""
AROUND = 0.05
"""Share of the whole window that is shown on each side of the longest gap, where a trace has no steps."""
CATEGORIES = (
    *("other", "cpu_op", "user_annotation", "python_function", "cuda_runtime", "overhead", "cuda_sync"),
    *("gpu_user_annotation", "kernel", "gpu_memcpy", "gpu_memset"),
)
"""Categories as PyTorch spells them today, in the order of `core.trace.KINDS`."""


def interesting(trace: Trace) -> TraceWindow:
    """Return the part to look at: the slowest step; without steps, the surroundings of the longest idle time."""
    found = steps(trace)
    if len(found) > 1:
        slowest = max(found, key=lambda step: step.end - step.start)
        return TraceWindow(STEPS, slowest.start, slowest.end)
    whole = window_of(trace)
    idle = gaps(busy_time(trace), whole)
    if not len(idle.start) or int((trace.end > whole.start).sum()) < MOST_EVENTS // 10:
        return whole
    longest = int(np.argmax(idle.end - idle.start))
    margin = int(AROUND * whole.length)
    start, end = int(idle.start[longest]) - margin, int(idle.end[longest]) + margin
    return TraceWindow(GPU, max(whole.start, start), min(whole.end, end))


def write_perfetto(trace: Trace, path: str, window: TraceWindow | None = None, *, force: bool = False) -> int:
    """Write the events of a window (default: `interesting`); return how many. A name that ends in `.gz` is compressed.

    Raises:
        StepscopeError: the file cannot be written, or is there already and `force` is not given.
    """
    window = window or interesting(trace)
    rows = _chosen(trace, window)
    with open_output(path, force=force) as output:
        stream = gzip.GzipFile(fileobj=output, mode="wb", mtime=0) if path.endswith(".gz") else output
        stream.write(json.dumps(_head(trace, window, len(rows)))[:-1].encode() + b', "traceEvents": [\n')
        for number, event in enumerate(_events(trace, window, rows)):
            stream.write((b",\n" if number else b"") + json.dumps(event).encode())
        stream.write(b"\n]}\n")
        if stream is not output:
            stream.close()
    return len(rows)


def _chosen(trace: Trace, window: TraceWindow) -> NDArray[Any]:
    """Return the events of a window; the longest ones where there are too many."""
    rows = np.flatnonzero((trace.end >= window.start) & (trace.start <= window.end))
    if len(rows) <= MOST_EVENTS:
        return rows
    length = (trace.end - trace.start)[rows]
    return np.sort(rows[np.argsort(-length, kind="stable")[:MOST_EVENTS]])


def _head(trace: Trace, window: TraceWindow, count: int) -> dict[str, Any]:
    head: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms", "traceName": trace.file}
    if trace.rank is not None:
        head["distributedInfo"] = {"rank": trace.rank, "world_size": trace.world_size}
    head["baseTimeNanoseconds"] = trace.base + trace.origin  # small times: a viewer's fractions hold them exactly
    head["stepscope"] = {"window": window.facts(trace.origin), "events": count, "of_events": len(trace)}
    return head


def _events(trace: Trace, window: TraceWindow, rows: NDArray[Any]) -> Iterator[dict[str, Any]]:
    """Yield names of lanes, then the events, clipped to the window, and arrows from launches to what they started."""
    for code in np.unique(trace.lane[rows]).tolist():
        lane = trace.lanes[code]
        where = {"ph": "M", "pid": lane.pid, "tid": lane.tid}
        yield {**where, "name": "process_name", "args": {"name": lane.process}}
        yield {**where, "name": "thread_name", "args": {"name": lane.thread}}
    linked = set(trace.correlation[rows[trace.kind[rows] == RUNTIME]].tolist())
    linked &= set(trace.correlation[rows[trace.kind[rows] >= FIRST_DEVICE]].tolist())
    for row in rows.tolist():
        event = _event(trace, window, row)
        yield event
        correlation = int(trace.correlation[row])
        if correlation > 0 and correlation in linked:
            begins = trace.kind[row] == RUNTIME
            arrow = {key: event[key] for key in ("pid", "tid", "ts")}
            yield {**arrow, "ph": "s" if begins else "f", "bp": "e", "id": correlation, "cat": "ac2g", "name": "ac2g"}


def _event(trace: Trace, window: TraceWindow, row: int) -> dict[str, Any]:
    start = max(int(trace.start[row]), window.start)
    end = max(start, min(int(trace.end[row]), window.end))
    lane = trace.lanes[trace.lane[row]]
    numbers = {
        "correlation": int(trace.correlation[row]),
        "External id": int(trace.external[row]),
        "device": lane.device,
        "stream": lane.stream,
    }
    return {
        "ph": "X",
        "cat": CATEGORIES[int(trace.kind[row])],
        "name": trace.named(trace.name[row]),
        "pid": lane.pid,
        "tid": lane.tid,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": {key: value for key, value in numbers.items() if value >= 0},
    }
