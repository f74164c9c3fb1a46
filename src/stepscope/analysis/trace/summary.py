"""Everything that one rank's trace shows, as plain values: what `stepscope trace` prints and the page draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analysis.finding import CRITICAL, WARNING, Finding
from stepscope.analysis.trace import breakdown as trace_breakdown
from stepscope.analysis.trace import data as trace_data
from stepscope.analysis.trace import details as trace_details
from stepscope.analysis.trace import idle as trace_idle
from stepscope.analysis.trace.breakdown import breakdown
from stepscope.analysis.trace.links import link
from stepscope.analysis.trace.roles import roles
from stepscope.analysis.trace.window import STEPS, TraceWindow, step_window, steps, window_of

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

FIRST = (
    *("idle_percent", "compute_percent", "communication_percent", "exposed_communication_percent"),
    *("memcpy_percent", "overlap_percent", "dataloader_percent"),
)
"""Shares, in the order that programs rely on."""
MOST_STEPS = 200
"""Steps whose own breakdown is given."""
SEVERITIES = {CRITICAL: 0, WARNING: 1}
"""Order of findings by severity; equal ones stay in the order data, idle time, communication, copies, the rest."""


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


def summary(trace: Trace, window: TraceWindow | None = None, top: int | None = trace_details.TOP) -> dict[str, Any]:
    """Return what a trace shows about a window of it (default: all device events)."""
    window = window or window_of(trace)
    shares, found = _time(trace, window)
    details = trace_details.details(trace, window, top)
    found += trace_details.findings(details)
    path = details["critical_path"]
    return {
        "file": trace.file,
        "rank": trace.rank,
        "window": window.facts(trace.origin),
        **{key: shares.pop(key) for key in FIRST},
        "findings": [one.facts() for one in sorted(found, key=lambda one: SEVERITIES.get(one.severity, 2))],
        **details,
        "critical_path": {**path, "parts": path["parts"][:top]} if path else None,
        "events": len(trace),
        "world_size": trace.world_size,
        **shares,
        "notes": [*trace.notes, *details["notes"]],
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
            for step in (steps(trace, device=True) or steps(trace))[:MOST_STEPS]
            for part in [breakdown(trace, TraceWindow(STEPS, step.start, step.end), role)]
        ],
    }
    return facts, found
