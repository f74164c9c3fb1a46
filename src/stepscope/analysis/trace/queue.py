"""Between launch and start: how long device work waits, how much of it is queued, and what CUDA graphs launch at once.

A launch waits from the beginning of its runtime call to the start of its work. Long queues mean that the device is the
limit; a stream that is empty when the next launch comes has waited for the host.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.analysis.trace.spans import NONE
from stepscope.analysis.trace.window import named_like

if TYPE_CHECKING:
    from stepscope.analysis.trace.links import Links
    from stepscope.analysis.trace.window import TraceWindow
    from stepscope.core.arrays import Integers
    from stepscope.core.trace import Trace


FULL = 1000
"""Waiting launches from which a stream's queue counts as full: CUDA takes 1 024, then the launching call blocks."""
MISMATCH_SHARE = 0.01
"""Share of launches that start before their call from which the clocks of host and device count as different."""
GRAPH_LAUNCH = re.compile("GraphLaunch")


def queue(trace: Trace, window: TraceWindow, links: Links) -> dict[str, Any] | None:
    """Return delays and queue lengths per stream and of all; None if no launch is known.

    `starved_percent` is the share of launches that found their stream empty. Work of a graph counts once, by its first
    kernel.
    """
    known = np.flatnonzero(links.call != NONE)
    at = known[np.unique(links.call[known], return_index=True)[1]]  # the first work of each call
    row, called = links.device[at], trace.start[links.host[links.call[at]]]
    inside = (trace.end[row] > window.start) & (trace.start[row] < window.end)
    row, called = row[inside], called[inside]
    if not len(row):
        return None
    free = _free_since(trace, links)[at][inside]
    begun = trace.start[row]
    each = []
    for code in np.unique(trace.lane[row]).tolist():
        lane, own = trace.lanes[code], trace.lane[row] == code
        facts = _waiting(called[own], begun[own], free[own], window)
        each.append({"device": lane.device, "stream": lane.stream} | facts)
    each.sort(key=lambda facts: -facts["launches"])
    return _waiting(called, begun, free, window) | {"streams": each}


def _free_since(trace: Trace, links: Links) -> Integers:
    """Return for each device event when its stream had finished all work before it; far past for the first."""
    row = links.device
    order = np.argsort(trace.lane[row], kind="stable")
    before = np.roll(trace.end[row][order], 1)
    before[np.diff(trace.lane[row][order], prepend=NONE) != 0] = np.iinfo(np.int64).min
    free = np.empty(len(row), dtype=np.int64)
    free[order] = before
    return free


def _waiting(called: Integers, begun: Integers, free: Integers, window: TraceWindow) -> dict[str, Any]:
    """Return delays and queue lengths of some launches."""
    delay = np.maximum(begun - called, 0)
    edges = np.sort(np.r_[called, begun[begun > called]])
    waiting, running = (np.searchsorted(np.sort(moments), edges, side="right") for moments in (called, begun))
    low, high = (np.clip(moment, window.start, window.end) for moment in (called, np.maximum(begun, called)))
    median, most_of, longest = (float(value) for value in np.percentile(delay, (50, 90, 100)))
    return {
        "launches": len(called),
        "delay_median_us": median / 1000,
        "delay_p90_us": most_of / 1000,
        "delay_max_us": longest / 1000,
        "queue_mean": float((high - low).sum()) / max(window.length, 1),
        "queue_max": int((waiting - running).max(initial=0)),
        "starved_percent": 100 * float((free <= called).mean()),
        "before_launch": int((begun < called).sum()),
    }


def graphs(trace: Trace, window: TraceWindow, links: Links) -> dict[str, Any] | None:
    """Return what CUDA graphs launched in the window; None if none did."""
    inside = (trace.end[links.device] > window.start) & (trace.start[links.device] < window.end)
    known = links.call != NONE
    by_call = np.zeros(len(links.device), dtype=np.bool_)
    by_call[known] = named_like(trace, GRAPH_LAUNCH)[links.host[links.call[known]]]
    work = links.device[inside & (by_call | (trace.number("graph node id")[links.device] > 0))]
    if not len(work):
        return None
    calls = np.unique(trace.correlation[work])
    spent = trace.end - trace.start
    return {
        "launches": len(calls),
        "graphs": len(np.unique(trace.number("graph id")[work])),
        "kernels": len(work),
        "kernels_per_launch": len(work) / len(calls),
        "kernels_percent": 100 * len(work) / int(inside.sum()),
        "device_time_percent": 100 * float(spent[work].sum() / max(spent[links.device[inside]].sum(), 1)),
    }


def findings(facts: dict[str, Any] | None) -> list[Finding]:
    """Report, from what `queue` returns, a full launch queue, and clocks of host and device that disagree."""
    if facts is None:
        return []
    found = []
    fullest = max(facts["streams"], key=lambda stream: int(stream["queue_max"]))
    if fullest["queue_max"] >= FULL:
        text = f"up to {fullest['queue_max']} launches waited on stream {fullest['stream']}: the host is far ahead"
        evidence = {"stream": fullest["stream"], "queue_max": fullest["queue_max"]}
        remedy = "nothing: the device is the limit, not the host"
        found.append(Finding("launch_queue_full", text, INFO, remedy, evidence))
    early = facts["before_launch"] / facts["launches"]
    if early > MISMATCH_SHARE:
        text = f"{100 * early:.0f} % of the launches start before their call: this trace's launch delays are too short"
        remedy = "record with a newer profiler or driver; device times among themselves stay valid"
        evidence = {"launches": facts["launches"], "before_launch": facts["before_launch"]}
        found.append(Finding("clock_mismatch", text, WARNING, remedy, evidence))
    return found
