"""Everything that a trace shows beside its breakdown: tables, memory, queue, graphs, critical path, and its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.trace import critical_path
from stepscope.analysis.trace import kernels as trace_kernels
from stepscope.analysis.trace import memory as trace_memory
from stepscope.analysis.trace import queue as trace_queue
from stepscope.analysis.trace.breakdown import time_of
from stepscope.analysis.trace.links import Links, link
from stepscope.analysis.trace.operators import operator_table
from stepscope.analysis.trace.roles import COMMUNICATION, COMPUTE, COPY, roles
from stepscope.analysis.trace.spans import covered
from stepscope.analysis.trace.window import DATA_LOADER, TraceWindow, excerpt, named_like, steps
from stepscope.core.trace import ANNOTATION

if TYPE_CHECKING:
    from stepscope.analysis.finding import Finding
    from stepscope.core.trace import Trace

TOP = 20
"""Rows of a table that a person reads."""
DETAILED = 200_000
"""Events up to which memory, queue, critical path and picture cover the whole window (0.8 s for so many here)."""
TABLED = 1_000_000
"""Events up to which tables cover the whole window: what fits beside four million events in 512 MiB."""


def details(trace: Trace, window: TraceWindow, top: int | None = TOP) -> dict[str, Any]:
    """Return all tables of a trace as plain values; `top` cuts those of kernels and operators, None keeps all rows.

    If the window has too many events, they are of a span in its middle, and `notes` says so.
    """
    part, span = excerpt(trace, window, DETAILED)
    large, table_span = excerpt(trace, window, TABLED)
    notes = []
    if part is not trace:
        notes.append(f"critical path, queue and picture are of {span.length / 1e9:.3g} s in the middle of the window")
    if large is not trace:
        seconds = table_span.length / 1e9
        notes.append(f"tables of kernels and operators are of {seconds:.3g} s in the middle of the window")
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
    """Return what stands out in them."""
    return [
        *critical_path.findings(facts["critical_path"]),
        *trace_kernels.findings(facts["families"]),
        *trace_memory.findings(facts["memory"]),
        *trace_queue.findings(facts["queue"]),
    ]


STRETCHES = 480
"""Spans that a window is divided into: about one per two pixels of a page."""
MOST_STEPS = 100
"""Steps above which their marks would only be a grey band."""


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
