"""Everything that one rank's trace tells, as plain values: what `stepscope trace` prints and the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analysis.finding import CRITICAL, WARNING, Finding
from stepscope.analysis.trace import data as trace_data
from stepscope.analysis.trace import details as trace_details
from stepscope.analysis.trace import idle as trace_idle
from stepscope.analysis.trace import kernels as trace_kernels
from stepscope.analysis.trace import operators as trace_operators
from stepscope.analysis.trace import verdict as trace_verdict
from stepscope.analysis.trace.breakdown import breakdown, by_step
from stepscope.analysis.trace.links import link
from stepscope.analysis.trace.roles import roles
from stepscope.analysis.trace.window import STEPS, TraceWindow, excerpt, step_window, steps, window_of

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

TOP = 20
"""Rows of the tables of kernels and operators."""
FIRST = (
    "idle_percent",
    "compute_percent",
    "communication_percent",
    "exposed_communication_percent",
    "memcpy_percent",
    "overlap_percent",
    "dataloader_percent",
)
"""Shares, in the order that programs rely on."""
DETAILED = 200_000
"""Events up to which critical path, queue and picture are of the whole window (0.8 s for so many here)."""
TABLED = 1_000_000
"""Events up to which the tables are of the whole window: what fits beside four million events in 512 MiB."""
MOST_STEPS = 200
"""Steps whose own breakdown is given."""


def choose_window(trace: Trace, wanted: str = "gpu") -> TraceWindow:
    """Return a window by what a person asks for.

    Args:
        trace: the trace.
        wanted: `gpu` (all device events), `steps` (the profiler's steps, as drawn on the device where recorded), or
            `START:END` in µs as the trace counts them; either may be empty.

    Raises:
        ValueError: it is none of these.
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
    """Return what a trace tells about a window of it (default: all device events)."""
    window = window or window_of(trace)
    shares, found = _time(trace, window)
    details, notes = _details(trace, window, top)
    found += trace_details.findings(details)
    path = details["critical_path"]
    return {
        "file": trace.file,
        "rank": trace.rank,
        "window": window.facts(trace.origin),
        **{key: shares.pop(key) for key in FIRST},
        "findings": [finding.facts() for finding in sorted(found, key=_weight)],
        **details,
        "critical_path": {**path, "parts": path["parts"][:top]} if path else None,
        "events": len(trace),
        "world_size": trace.world_size,
        **shares,
        "notes": [*trace.notes, *notes],
    }


def _time(trace: Trace, window: TraceWindow) -> tuple[dict[str, Any], list[Finding]]:
    """Return where the time went and why, over all events of the window, and what is to be said about it."""
    links = link(trace)
    role = roles(trace, links)
    parts = breakdown(trace, window, role)
    idle = trace_idle.why_idle(trace, window, links)
    data = trace_data.loading(trace)
    sizes = trace_idle.kernel_sizes(trace, window)
    sites = trace_idle.waiting_sites(trace, window, links)
    found = [
        *trace_data.findings(data, *_idle_shares(trace, window, data, parts.idle, parts.busy)),
        *(trace_verdict.idle_findings(idle, sizes, sites) if parts.busy else []),
        *trace_verdict.communication_findings(parts),
        *trace_verdict.copy_findings(parts),
    ]
    facts = {
        **parts.facts(),
        "dataloader_percent": data.percent,
        "dataloader_of": data.over,
        "idle_causes": idle.facts() if parts.busy else [],
        "waits": sites,
        "kernel_sizes": sizes,
        "steps": _steps(trace, role),
    }
    return facts, found


def _details(trace: Trace, window: TraceWindow, top: int | None) -> tuple[dict[str, Any], list[str]]:
    """Return the tables, of a span of the window where it has too many events, and notes that say so."""
    part, stretch = excerpt(trace, window, DETAILED)
    details = trace_details.details(part, stretch, top)
    if part is trace:
        return details, []
    notes = [f"critical path, queue and picture are of {stretch.length / 1e9:.3g} s in the middle of the window"]
    most, span = excerpt(trace, window, TABLED)
    if most is not trace:
        notes.append(f"tables of kernels and operators are of {span.length / 1e9:.3g} s in the middle of the window")
    links = link(most)
    details["kernels"] = trace_kernels.kernel_table(most, span, links)[:top]
    details["families"] = trace_kernels.family_table(most, span, links)
    details["operators"] = trace_operators.operator_table(most, span, links)[:top]
    return details, notes


def _idle_shares(
    trace: Trace, window: TraceWindow, data: trace_data.Loading, idle: int, busy: int
) -> tuple[float | None, float | None]:
    share = idle / window.length if window.length and busy else None
    return share, trace_idle.idle_for_data(trace, window, data.waits)


def _steps(trace: Trace, role: Any) -> list[dict[str, Any]]:
    """Return the breakdown of every step of the profiler."""
    found = (steps(trace, device=True) or steps(trace))[:MOST_STEPS]
    windows = [TraceWindow(STEPS, step.start, step.end) for step in found]
    return [{"step": step.number, **facts} for step, facts in zip(found, by_step(trace, role, windows), strict=True)]


def _weight(finding: Finding) -> int:
    """Order findings: the worst first, else as they come: data, idle time, communication, copies, the rest."""
    return {CRITICAL: 0, WARNING: 1}.get(finding.severity, 2)
