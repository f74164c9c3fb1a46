"""Two traces side by side: what was added, removed, slower and faster, in parts that sum to the difference.

Every moment of a step belongs to the work on the device (divided evenly among simultaneous events) or, if the device
was idle, to what the thread did that launched the next work. So the parts of each step sum to the step, and their
differences sum to the difference of the steps.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.analysis.trace.breakdown import busy_time
from stepscope.analysis.trace.kernels import families, short_name
from stepscope.analysis.trace.links import Links, link
from stepscope.analysis.trace.spans import NONE, SpanPieces, covered, inherited, parents, pieces, shares
from stepscope.analysis.trace.window import (
    DATA_LOADER,
    STEP,
    Intervals,
    TraceWindow,
    gaps,
    named_like,
    step_window,
    steps,
    total,
    window_of,
)
from stepscope.core.numbers import format_change
from stepscope.core.trace import RUNTIME

if TYPE_CHECKING:
    from stepscope.core.arrays import Integers
    from stepscope.core.trace import Trace


KERNEL, OPERATOR, IDLE = "kernel", "operator", "idle"
NOTHING = "host: nothing recorded"
"""Where the device is idle, and the launching thread is in no operator: Python, or nothing."""
UNLAUNCHED = "not launched by any operator"
SAME_RATIO = 0.02
"""Relative change of a part below which it counts as the same: kernels of one program vary by 1 to 2 %."""
WORTH_RATIO = 0.01
"""Change of a part, as a share of the step, from which it is worth a finding."""

Part = tuple[str, str]


@dataclass(frozen=True)
class Split:
    """One trace's step, divided."""

    window: TraceWindow
    steps: int
    parts: dict[Part, float]
    """ns per step of each (kind, name); they sum to the step."""
    calls: dict[Part, float]
    """Calls per step."""

    @property
    def length(self) -> float:
        """Length of a step in ns."""
        return self.window.length / self.steps


def compare_traces(before: Trace, after: Trace, by: str = KERNEL) -> dict[str, Any]:
    """Return the difference of two traces, per step if both have steps, else of their windows.

    `by` is `kernel`, or `operator` to name what launched the kernels.
    """
    stepwise = bool(steps(before)) and bool(steps(after))
    old, new = (split(trace, by, stepwise=stepwise) for trace in (before, after))
    parts = [_part(key, old, new) for key in {**old.parts, **new.parts}]
    parts.sort(key=lambda part: -abs(part["difference_us"]))
    facts: dict[str, Any] = {
        "per": "step" if stepwise else "window",
        "by": by,
        "steps": [old.steps, new.steps],
        "before_us": old.length / 1000,
        "after_us": new.length / 1000,
        "difference_us": (new.length - old.length) / 1000,
        "difference_percent": 100 * (new.length / old.length - 1) if old.length else None,
        "changes": {
            change: sum(part["difference_us"] for part in parts if part["change"] == change)
            for change in ("added", "removed", "slower", "faster", "same")
        },
        "parts": parts,
    }
    return facts | {"findings": _findings(facts)}


def split(trace: Trace, by: str = KERNEL, *, stepwise: bool = True) -> Split:
    """Divide the steps of a trace, or its whole window, into what the device or the launching host did."""
    found = step_window(trace) if stepwise else None
    window, count = (found, len(steps(trace))) if found else (window_of(trace), 1)
    links = link(trace)
    start, end = (np.clip(column[links.device], window.start, window.end) for column in (trace.start, trace.end))
    labels = _labels(trace, links, by)
    parts: dict[Part, float] = {}
    calls: Counter[Part] = Counter()
    for label, share, inside in zip(labels, shares(start, end).tolist(), (end > start).tolist(), strict=True):
        if inside:
            parts[label] = parts.get(label, 0.0) + share / count
            calls[label] += 1
    for name, time in _idle(trace, links, window).items():
        parts[IDLE, name] = time / count
    return Split(window, count, parts, {label: number / count for label, number in calls.items()})


def _labels(trace: Trace, links: Links, by: str) -> list[Part]:
    """Return the part that each device event belongs to."""
    if by == OPERATOR:
        host = trace.name[links.host].tolist()
        return [(OPERATOR, UNLAUNCHED if at == NONE else trace.names[host[at]]) for at in links.operator.tolist()]
    kinds = families(trace, links)
    return [(kind, trace.names[code]) for kind, code in zip(kinds, trace.name[links.device].tolist(), strict=True)]


def _idle(trace: Trace, links: Links, window: TraceWindow) -> dict[str, int]:
    """Return the idle time of the device by what the thread did that launched the next work."""
    idle = gaps(busy_time(trace), window)
    # Operators and annotations, without steps, and without those inside a DataLoader, which counts as one.
    loads, profiler = (named_like(trace, pattern)[links.host] for pattern in (DATA_LOADER, STEP))
    row = links.host[(trace.kind[links.host] != RUNTIME) & ~profiler & (loads | ~inherited(loads, links.parent))]
    lane, start, end = trace.lane[row].astype(np.int64), trace.start[row], trace.end[row]
    doing = pieces(lane, start, end, parents(lane, start, end))
    threads = _launching(trace, links, idle.end)
    found: Counter[str] = Counter()
    for thread in np.unique(threads).tolist():
        own = Intervals(idle.start[threads == thread], idle.end[threads == thread])
        left = total(own)
        for event, time in _overlaps(doing.of(thread), own).items():
            found[trace.names[trace.name[row[event]]]] += time
            left -= time
        if left:
            found[NOTHING] += left
    return found


def _launching(trace: Trace, links: Links, at: Integers) -> Integers:
    """Return for each moment the thread that launched the device work which starts next; `NONE`."""
    known = np.flatnonzero(links.call != NONE)
    if not len(known):
        return np.full(len(at), NONE, dtype=np.int64)
    place = np.searchsorted(trace.start[links.device[known]], at)
    call = links.call[known[np.minimum(place, len(known) - 1)]]
    return trace.lane[links.host[call]].astype(np.int64)


def _overlaps(doing: SpanPieces, idle: Intervals) -> dict[int, int]:
    """Return the time that pieces share with intervals, by event."""
    time = covered(idle, doing.end) - covered(idle, doing.start)
    some = np.flatnonzero((time > 0) & (doing.event != NONE))
    events, place = np.unique(doing.event[some], return_inverse=True)
    sums = np.bincount(place, weights=time[some], minlength=len(events)).astype(np.int64)
    return dict(zip(events.tolist(), sums.tolist(), strict=True))


def _part(key: Part, old: Split, new: Split) -> dict[str, Any]:
    before, after = old.parts.get(key, 0.0), new.parts.get(key, 0.0)
    if key not in old.parts or key not in new.parts:
        change = "removed" if key in old.parts else "added"
    elif abs(after - before) <= SAME_RATIO * max(before, after):
        change = "same"
    else:
        change = "slower" if after > before else "faster"
    return {
        "kind": key[0],
        "name": key[1],
        "change": change,
        "before_us": before / 1000,
        "after_us": after / 1000,
        "difference_us": (after - before) / 1000,
        "calls_before": old.calls.get(key),
        "calls_after": new.calls.get(key),
    }


def _findings(facts: dict[str, Any]) -> list[Finding]:
    """Report how the step changed, and which parts caused it."""
    if not facts["before_us"]:
        return []
    percent, worth = facts["difference_percent"], WORTH_RATIO * facts["before_us"]
    same_way = [part for part in facts["parts"] if part["difference_us"] * facts["difference_us"] > 0]
    main = [part for part in same_way if abs(part["difference_us"]) >= worth][:3]
    kinds = {IDLE: "device idle during"}
    why = "; ".join(
        f"{kinds.get(part['kind'], part['kind'])} {short_name(part['name'], 60)} {part['difference_us'] / 1000:+.2f} ms"
        for part in main
    )
    same = abs(percent) <= 100 * SAME_RATIO
    text = f"a {facts['per']} takes {'about as long as before: ' if same else ''}{facts['after_us'] / 1000:.1f} ms "
    text += f"{'against' if same else 'instead of'} {facts['before_us'] / 1000:.1f} ms ({format_change(percent / 100)})"
    text += f": {why}" if why else ""
    severity = WARNING if percent > 100 * SAME_RATIO else INFO
    return [Finding("trace_difference", text, severity, "", {"difference_us": facts["difference_us"], "parts": main})]
