"""Everything that a trace tells beside its breakdown: tables, memory, queue, graphs, critical path, and its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.trace import critical_path
from stepscope.analysis.trace import kernels as trace_kernels
from stepscope.analysis.trace import memory as trace_memory
from stepscope.analysis.trace import operators as trace_operators
from stepscope.analysis.trace import part as trace_part
from stepscope.analysis.trace import queue as trace_queue
from stepscope.analysis.trace.breakdown import time_of
from stepscope.analysis.trace.links import Links, link
from stepscope.analysis.trace.roles import COMMUNICATION, COMPUTE, COPY, roles
from stepscope.analysis.trace.spans import covered
from stepscope.analysis.trace.window import TraceWindow, steps
from stepscope.core.trace import ANNOTATION

if TYPE_CHECKING:
    from stepscope.analysis.finding import Finding
    from stepscope.analysis.trace.links import Links
    from stepscope.analysis.trace.window import TraceWindow
    from stepscope.core.trace import Trace

TOP = 20
"""Rows of a table that a person reads."""
MOST_EVENTS = 500_000
"""Events up to which all tables are of the whole window: these take some 60 MB."""


def details(trace: Trace, window: TraceWindow, top: int | None = TOP, links: Links | None = None) -> dict[str, Any]:
    """Return all tables of a trace as plain values; `top` cuts those of kernels and operators, None keeps all rows.

    Of a huge trace, operators, memory's owners, queue, graphs and path are those of its middle: `part` says which.
    """
    links = link(trace) if links is None else links
    some, span = trace_part.middle(trace, window, MOST_EVENTS)
    joined = links if some is trace else link(some)
    return {
        "kernels": trace_kernels.kernel_table(trace, window, links)[:top],
        "families": trace_kernels.family_table(trace, window, links),
        "operators": trace_operators.operator_table(some, span, joined)[:top],
        "memory": trace_memory.memory_timeline(some, joined),
        "queue": trace_queue.queue(some, span, joined),
        "graphs": trace_queue.graphs(some, span, joined),
        "critical_path": critical_path.critical_path(some, span, joined),
        "timeline": timeline(trace, window, links),
        "part": None if some is trace else span.facts(trace.origin) | {"events": len(some)},
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


def timeline(
    trace: Trace, window: TraceWindow, links: Links | None = None, stretches: int = STRETCHES
) -> dict[str, Any]:
    """Return, per span of the window, the share in which each kind of work ran, from 0 to 1, and where steps lie.

    Shares are exact: no event is too short to count.
    """
    edges = np.linspace(window.start, window.end, stretches + 1).astype(np.int64)
    role = roles(trace, links)
    codes = [code for code, name in enumerate(trace.names) if "DataLoader" in name]
    lanes = {
        "compute": role == COMPUTE,
        "communication": role == COMMUNICATION,
        "copy": role == COPY,
        "data": np.isin(trace.name, codes) & (trace.kind <= ANNOTATION),
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
