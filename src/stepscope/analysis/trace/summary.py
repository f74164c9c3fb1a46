"""Everything that one rank's trace shows, as plain values: what `stepscope trace` prints and the page draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import CRITICAL, WARNING, Finding
from stepscope.analysis.trace import breakdown as trace_breakdown
from stepscope.analysis.trace import critical_path
from stepscope.analysis.trace import data as trace_data
from stepscope.analysis.trace import idle as trace_idle
from stepscope.analysis.trace import kernels as trace_kernels
from stepscope.analysis.trace import memory as trace_memory
from stepscope.analysis.trace import queue as trace_queue
from stepscope.analysis.trace.breakdown import breakdown, time_of
from stepscope.analysis.trace.links import Links, link
from stepscope.analysis.trace.operators import operator_table
from stepscope.analysis.trace.roles import COMMUNICATION, COMPUTE, COPY, roles
from stepscope.analysis.trace.spans import covered
from stepscope.analysis.trace.window import (
    DATA_LOADER,
    STEPS,
    TraceWindow,
    excerpt,
    named_like,
    step_window,
    steps,
    window_of,
)
from stepscope.core.trace import ANNOTATION

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

FIRST = (
    *("idle_percent", "compute_percent", "communication_percent", "exposed_communication_percent"),
    *("memcpy_percent", "overlap_percent", "dataloader_percent"),
)
"""Shares, in the order that programs rely on."""
MOST_BROKEN_DOWN = 200
"""Steps whose own breakdown is given."""
SEVERITIES = {CRITICAL: 0, WARNING: 1}
"""Order of findings by severity; equal ones stay in the order data, idle time, communication, copies, the rest."""
TOP = 20
"""Rows of a table that a person reads."""
DETAILED = 200_000
"""Events up to which memory, queue, critical path and picture cover the whole window (0.8 s for so many here)."""
TABLED = 1_000_000
"""Events up to which tables cover the whole window: what fits beside four million events in 512 MiB."""
STRETCHES = 480
"""Spans that a window is divided into: about one per two pixels of a page."""
MOST_STEPS = 100
"""Steps above which their marks would only be a grey band."""


def choose_window(trace: Trace, wanted: str = "gpu") -> TraceWindow:
    """Return a window by its description; raises ValueError if it is none of these.

    `gpu` (all device events), `steps` (the profiler's steps, as drawn on the device if recorded), or `START:END` in µs
    as the trace counts them; either may be empty.
    """
    if wanted == "steps":
        return step_window(trace) or window_of(trace)
    if wanted == "gpu":
        return window_of(trace)
    start, colon, end = wanted.partition(":")
    if not colon:
        raise ValueError(wanted)
    return window_of(trace, float(start) if start.strip() else None, float(end) if end.strip() else None)


def summary(trace: Trace, window: TraceWindow | None = None, top: int | None = TOP) -> dict[str, Any]:
    """Return what a trace shows about a window of it (default: all device events)."""
    window = window or window_of(trace)
    shares, found = _time(trace, window)
    tables = details(trace, window, top)
    found += findings(tables)
    path = tables["critical_path"]
    return {
        "file": trace.file,
        "rank": trace.rank,
        "window": window.facts(trace.origin),
        **{key: shares.pop(key) for key in FIRST},
        "findings": [one.facts() for one in sorted(found, key=lambda one: SEVERITIES.get(one.severity, 2))],
        **tables,
        "critical_path": {**path, "parts": path["parts"][:top]} if path else None,
        "events": len(trace),
        "world_size": trace.world_size,
        **shares,
        "notes": [*trace.notes, *tables["notes"]],
    }


def _time(trace: Trace, window: TraceWindow) -> tuple[dict[str, Any], list[Finding]]:
    """Return where the time went and why, over all events of the window, and the findings about it."""
    links = link(trace)
    role = roles(trace, links)
    parts = breakdown(trace, window, role)
    idle = trace_idle.why_idle(trace, window, links)
    data = trace_data.loading(trace)
    sizes = trace_idle.kernel_sizes(trace, window)
    sites = trace_idle.waiting_sites(trace, window, links)
    idle_share = parts.idle / window.length if window.length and parts.busy else None
    found = [
        *trace_data.findings(data, idle_share, trace_idle.idle_for_data(trace, window, data.waits)),
        *(trace_idle.findings(idle, sizes, sites) if parts.busy else []),
        *trace_breakdown.findings(parts),
    ]
    facts = {
        **parts.facts(),
        "dataloader_percent": data.percent,
        "dataloader_of": data.over,
        "idle_causes": idle.facts() if parts.busy else [],
        "waits": sites,
        "kernel_sizes": sizes,
        "steps": [
            {"step": step.number, **part.window.facts(trace.origin), **part.facts()}
            for step in (steps(trace, device=True) or steps(trace))[:MOST_BROKEN_DOWN]
            for part in [breakdown(trace, TraceWindow(STEPS, step.start, step.end), role)]
        ],
    }
    return facts, found


def details(trace: Trace, window: TraceWindow, top: int | None = TOP) -> dict[str, Any]:
    """Return all tables of a trace as plain values; `top` cuts those of kernels and operators, None keeps all rows.

    If the window has too many events, they are of a span in its middle, and `notes` says so.
    """
    part, span = excerpt(trace, window, DETAILED)
    large, table_span = excerpt(trace, window, TABLED)
    notes = [
        f"{what} are of {own.length / 1e9:.3g} s in the middle of the window"
        for what, own in (("critical path, queue and picture", span), ("tables of kernels and operators", table_span))
        if own is not window
    ]
    links = link(part)
    facts = {
        "memory": trace_memory.memory_timeline(part, links),
        "queue": trace_queue.queue(part, span, links),
        "graphs": trace_queue.graphs(part, span, links),
        "critical_path": critical_path.critical_path(part, span, links),
        "timeline": timeline(part, span, links),
    }
    links = links if large is part else link(large)
    return {
        "kernels": trace_kernels.kernel_table(large, table_span, links)[:top],
        "families": trace_kernels.family_table(large, table_span, links),
        "operators": operator_table(large, table_span, links)[:top],
        **facts,
        "notes": notes,
    }


def findings(facts: dict[str, Any]) -> list[Finding]:
    """Return what stands out in the tables that `details` returns."""
    return [
        *critical_path.findings(facts["critical_path"]),
        *trace_kernels.findings(facts["families"]),
        *trace_memory.findings(facts["memory"]),
        *trace_queue.findings(facts["queue"]),
    ]


def timeline(trace: Trace, window: TraceWindow, links: Links) -> dict[str, Any]:
    """Return, per span of the window, the share in which each kind of work ran, from 0 to 1, and where the steps are.

    Shares are exact: no event is too short to count.
    """
    edges = np.linspace(window.start, window.end, STRETCHES + 1).astype(np.int64)
    role = roles(trace, links)
    lanes = {
        "compute": role == COMPUTE,
        "communication": role == COMMUNICATION,
        "copy": role == COPY,
        "data": named_like(trace, DATA_LOADER, trace.kind <= ANNOTATION),
    }
    shares = {}
    for name, chosen in lanes.items():
        if chosen.any():
            done = covered(time_of(trace, chosen), edges)
            shares[name] = [round(value, 4) for value in (np.diff(done) / np.maximum(np.diff(edges), 1)).tolist()]
    marks = [step for step in steps(trace) if step.end > window.start and step.start < window.end]
    return {
        "length_us": window.length / 1000,
        "shares": shares,
        "steps": [
            {
                "number": step.number,
                "start_us": (step.start - window.start) / 1000,
                "end_us": (step.end - window.start) / 1000,
            }
            for step in marks[:MOST_STEPS]
        ],
    }
