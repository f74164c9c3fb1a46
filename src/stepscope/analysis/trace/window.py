"""The basis of every analysis of a trace: the window that it is about, and sets of intervals."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.core.trace import ANNOTATION, RANGE, Sparse

if TYPE_CHECKING:
    from stepscope.core.arrays import Integers, Mask
    from stepscope.core.trace import Trace


GPU, STEPS, HOST, GIVEN = "gpu_events", "profiler_steps", "host_events", "given"
"""Kinds of window: from the first to the last device event; from the first to the last ProfilerStep; from the first to
the last host event, for a trace without a device; as given."""

STEP = re.compile(r"^ProfilerStep\s*#?\s*(\d+)")
"""How the steps of a profiler are named."""
DATA_LOADER = re.compile(r"DataLoader")


class Intervals(NamedTuple):
    """Spans of time that do not touch each other, in order. Times in ns."""

    start: Integers
    end: Integers


@dataclass(frozen=True)
class TraceWindow:
    """The span of time that an analysis is about, in ns on the clock of the trace."""

    kind: str
    start: int
    end: int

    @property
    def length(self) -> int:
        """Length in ns."""
        return self.end - self.start

    def facts(self, origin: int = 0) -> dict[str, Any]:
        """Return the fields as plain values, in µs as the trace counts them (`origin`: of the trace)."""
        return {"kind": self.kind, "start_us": (self.start + origin) / 1000, "end_us": (self.end + origin) / 1000}


class ProfilerStep(NamedTuple):
    """One step of the profiler on the host. Times in ns."""

    number: int
    start: int
    end: int


def window_of(trace: Trace, start_us: float | None = None, end_us: float | None = None) -> TraceWindow:
    """Return the window of all device events, or of all host events if there is none, or the given part of it.

    Start and end are in µs as the trace counts them.
    """
    busy = trace.on_device
    whole = span_of(GPU, trace.start[busy], trace.end[busy]) if busy.any() else span_of(HOST, trace.start, trace.end)
    if start_us is None and end_us is None:
        return whole
    start = whole.start if start_us is None else round(start_us * 1000) - trace.origin
    end = whole.end if end_us is None else round(end_us * 1000) - trace.origin
    return TraceWindow(GIVEN, start, max(start, end))


def step_window(trace: Trace) -> TraceWindow | None:
    """Return the window from the first to the last ProfilerStep, as drawn on the device if it is; None without."""
    found = steps(trace, device=True) or steps(trace)
    return TraceWindow(STEPS, min(step.start for step in found), max(step.end for step in found)) if found else None


def span_of(kind: str, start: Integers, end: Integers) -> TraceWindow:
    """Return the window from the first start to the last end of some events; an empty one if there is none."""
    return TraceWindow(kind, int(start.min()), int(end.max())) if len(start) else TraceWindow(kind, 0, 0)


def steps(trace: Trace, *, device: bool = False) -> list[ProfilerStep]:
    """Return the profiler's steps in order of time, on the host or (`device`) as drawn around their kernels."""
    numbers = {code: int(found[1]) for code, name in enumerate(trace.names) if (found := STEP.match(name))}
    if not numbers:
        return []
    wanted = trace.kind == RANGE if device else trace.kind <= ANNOTATION
    rows = np.flatnonzero(wanted & np.isin(trace.name, list(numbers)))
    return [ProfilerStep(numbers[int(trace.name[row])], int(trace.start[row]), int(trace.end[row])) for row in rows]


def excerpt(trace: Trace, window: TraceWindow, most: int) -> tuple[Trace, TraceWindow]:
    """Return the trace, or a span in the middle of the window with at most so many events, from a step on if possible.

    For analyses that would take too long on millions of events. The columns are views: a span costs no memory.
    """
    first, last = (int(np.searchsorted(trace.start, moment)) for moment in (window.start, window.end))
    if last - first <= most:
        return trace, window
    begin = first + (last - first - most) // 2
    ahead = [step.start for step in steps(trace) if trace.start[begin] <= step.start <= trace.start[begin + most // 4]]
    begin = int(np.searchsorted(trace.start, ahead[0])) if ahead else begin
    end = min(begin + most, last)
    columns = ("start", "end", "name", "kind", "lane", "correlation", "external")
    part: dict[str, Any] = {key: getattr(trace, key)[begin:end] for key in columns}
    for group in ("numbers", "texts"):
        part[group] = {}
        for key, one in getattr(trace, group).items():
            first, last = np.searchsorted(one.rows, (begin, end))
            part[group][key] = Sparse(one.rows[first:last] - begin, one.values[first:last])
    return replace(trace, **part), TraceWindow(GIVEN, int(trace.start[begin]), int(trace.start[end - 1]))


def union(start: Integers, end: Integers) -> Intervals:
    """Return the time that any of these intervals covers."""
    kept = end > start
    if not kept.all():
        start, end = start[kept], end[kept]
    if not len(start):
        return Intervals(start, end)
    if not (start[1:] >= start[:-1]).all():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(start[1:] > reach[:-1]) + 1
    return Intervals(start[np.append(0, first)], reach[np.append(first, len(start)) - 1])


def clip(intervals: Intervals, window: TraceWindow) -> Intervals:
    """Return the parts of some intervals that lie inside a window."""
    if not len(intervals.start) or (intervals.start[0] >= window.start and intervals.end[-1] <= window.end):
        return intervals
    start = np.clip(intervals.start, window.start, window.end)
    end = np.clip(intervals.end, window.start, window.end)
    kept = end > start
    return Intervals(start[kept], end[kept])


def gaps(intervals: Intervals, window: TraceWindow) -> Intervals:
    """Return the time of a window that the intervals leave free."""
    inside = clip(intervals, window)
    start, end = np.append(window.start, inside.end), np.append(inside.start, window.end)
    kept = end > start
    return Intervals(start[kept], end[kept])


def common(one: Intervals, other: Intervals) -> Intervals:
    """Return the time that both cover."""
    if not len(one.start) or not len(other.start):
        return Intervals(one.start[:0], one.end[:0])
    edge = np.unique(np.concatenate((*one, *other)))
    inside = _covers(one, edge[:-1]) & _covers(other, edge[:-1])
    return union(edge[:-1][inside], edge[1:][inside])


def _covers(intervals: Intervals, moment: Integers) -> Mask:
    """Return for each moment whether the intervals cover the time right after it."""
    place = np.searchsorted(intervals.start, moment, side="right") - 1
    return (place >= 0) & (moment < intervals.end[np.maximum(place, 0)])


@lru_cache(maxsize=1 << 15)
def matches(pattern: re.Pattern[str], name: str) -> bool:
    """Return whether a name matches a pattern; cached, because every rank and analysis asks for the same names."""
    return pattern.search(name) is not None


def named_like(trace: Trace, pattern: re.Pattern[str], among: Mask | None = None) -> Mask:
    """Return which events (of those `among`) have a name like a pattern."""
    rows = trace.name if among is None else trace.name[among]
    seen = np.zeros(len(trace.names) + 1, bool)
    seen[rows] = True
    table = np.array([seen[code] and matches(pattern, name) for code, name in enumerate(trace.names)] or [False], bool)
    found = table[trace.name]
    return np.asarray(found if among is None else found & among, bool)


def together(one: Intervals, other: Intervals) -> Intervals:
    """Return the time that either covers."""
    if not len(one.start) or not len(other.start):
        return one if len(one.start) else other
    return union(np.concatenate((one.start, other.start)), np.concatenate((one.end, other.end)))


def total(intervals: Intervals) -> int:
    """Return the ns that some intervals cover."""
    return int((intervals.end - intervals.start).sum())
