"""The critical path of a step: the chain of work and waiting that determined its length, and what to shorten.

The path is followed back from the last device work of the step along what each moment waited for. Its parts sum to the
length of the step. The gain of shortening a part is found by replaying the step without it: other chains that were
hidden behind it may then be the longest, so the gain is often less than the part.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import INFO, WARNING, Finding
from stepscope.analysis.trace.data import LOADING
from stepscope.analysis.trace.graph import ANNOTATE, CALL, GAP, KINDS, LAUNCH, OPERATE, SYNC, Graph, graph
from stepscope.analysis.trace.kernels import short_name
from stepscope.analysis.trace.spans import NONE
from stepscope.analysis.trace.window import TraceWindow, steps
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from stepscope.analysis.trace.links import Links
    from stepscope.core.arrays import Integers, Mask
    from stepscope.core.trace import Trace


STEP, WHOLE = "step", "the window"
MOST_REPLAYS = 5
"""Longest parts of the path that are replayed: each costs one pass over the step."""
MOST_EVENTS = 100_000
"""Events of a step above which only its middle is analysed: these take some 60 MB and, with replays, a second."""
HOST = (LAUNCH, OPERATE, ANNOTATE, CALL, GAP, SYNC)
HOST_KINDS = tuple(KINDS[kind] for kind in HOST)
"""Kinds of edges that a faster host would shorten."""
DEVICE_KINDS = tuple(kind for kind in KINDS if kind not in HOST_KINDS)
HOST_BOUND_RATIO = 0.5
"""Share of the path on the host from which the step is called host-bound."""
HOST_WORTH = 0.1
"""Share of the step that a host that takes no time must save for it to be the limit."""
WRAPS = 90.0
"""Percent of the step from which a part is a range around all of it, which cannot be removed."""
WORTH_RATIO = 0.02
"""Gain, as a share of the step, from which a part is worth a finding: steps of one program vary by 1 to 2 %."""
GAPS = "the gaps between operators on the host"
UNKNOWN = "unknown"
"""Kind of the time before the first moment whose cause is in the trace."""
UNKNOWN_KIND = len(KINDS)
PATH_KINDS = (*KINDS, UNKNOWN)


def critical_path(trace: Trace, window: TraceWindow, links: Links) -> dict[str, Any] | None:
    """Return the critical path of the step of median length in a window, or of the window if it holds no whole step.

    `kinds` and `parts` sum to `length_us`; `outer` has the parts of the host by the outermost operator or annotation
    instead. `gain_percent` is by how much the step would be shorter without the part (None: not replayed).
    """
    part, label = _bounded(trace, *median_step(trace, window, links))
    moments = graph(trace, part, links)
    if moments.last == NONE or part.length <= 0:
        return None
    path, chains = walk(moments, part), Chains.of(moments)
    on_host = int((path.end - path.start)[np.isin(path.kind, HOST)].sum())
    return {
        "of": label,
        "start_us": (part.start + trace.origin) / 1000,
        "length_us": part.length / 1000,
        "kinds": [_cost(time, part) | {"kind": PATH_KINDS[kind]} for (kind,), time, _ in path.sums("kind")],
        "host": _cost(on_host, part) | {"gain_percent": _gain(chains, np.isin(moments.edges.kind, HOST), part)},
        "parts": _parts(trace, chains, path, part),
        "outer": _outer(trace, chains, path, part),
    }


def median_step(trace: Trace, window: TraceWindow, links: Links) -> tuple[TraceWindow, str]:
    """Return the step of median length as the device saw it: from the end of the work of the step before to its own."""
    known = links.call != NONE
    called = trace.start[links.host[links.call[known]]]
    ends = trace.end[links.device[known]]
    done = []
    for step in steps(trace):
        if step.end > window.start and step.start < window.end:
            own = (called >= step.start) & (called < step.end)
            if own.any() or not len(links.device):
                done.append((int(ends[own].max()) if own.any() else step.end, step.number))
    periods = [
        (end - before, end, number)
        for (before, _), (end, number) in pairwise(done)
        if window.start <= before < end <= window.end
    ]
    if not periods:
        return window, WHOLE
    length, end, number = sorted(periods)[(len(periods) - 1) // 2]
    return TraceWindow(STEP, end - length, end), f"step {number}"


SPREAD = 2**31
"""More than any column's values: names are numbered in 32 bits."""


def _bounded(trace: Trace, part: TraceWindow, label: str) -> tuple[TraceWindow, str]:
    """Return the middle of a part with too many events, from its first to its last device event, and say so."""
    low, high = (int(place) for place in np.searchsorted(trace.start, [part.start, part.end]))
    if high - low <= MOST_EVENTS:
        return part, label
    first = (low + high - MOST_EVENTS) // 2
    rows = np.arange(first, first + MOST_EVENTS)
    rows = rows[trace.on_device[rows]] if trace.on_device[rows].any() else rows
    span = TraceWindow(STEP, int(trace.start[rows].min()), min(int(trace.end[rows].max()), part.end))
    share = span.length / max(part.length, 1)
    return span, f"the middle {100 * share:.{0 if share >= 0.1 else 2}{'f' if share >= 0.1 else 'g'}} % of {label}"


@dataclass(frozen=True)
class CriticalPath:
    """Spans of the path in order of time, in ns. Names are places in the trace's names, `NONE` if there is none."""

    start: Integers
    end: Integers
    kind: Integers
    """Place in `PATH_KINDS`."""
    name: Integers
    within: Integers
    """Name of the outermost event of the thread."""

    def sums(self, *keys: str) -> list[tuple[tuple[int, ...], int, int]]:
        """Return time in ns and number of spans per value of some columns, most time first."""
        code = np.zeros(len(self.start), dtype=np.int64)
        for key in keys:
            code = code * SPREAD + getattr(self, key) + 1
        first, place = np.unique(code, return_index=True, return_inverse=True)[1:]
        time, count = np.bincount(place, weights=self.end - self.start), np.bincount(place)
        values = [tuple(int(getattr(self, key)[row]) for key in keys) for row in first.tolist()]
        return [(values[at], int(time[at]), int(count[at])) for at in np.argsort(-time, kind="stable").tolist()]


def walk(moments: Graph, window: TraceWindow) -> CriticalPath:
    """Return the path through a window; it covers the whole window."""
    edges, steps_back = moments.edges, moments.binding.tolist()
    sources = edges.source.tolist()
    at, found = moments.last, []
    while (edge := steps_back[at]) != NONE:
        found.append(edge)
        at = sources[edge]
    chosen, time = np.array(found[::-1], dtype=np.int64), moments.time
    # The time before the first moment and after the last is unknown: both are empty in most windows.
    start = np.r_[window.start, time[edges.source[chosen]], time[moments.last]]
    end = np.r_[time[at], time[edges.target[chosen]], window.end]
    kind = np.r_[UNKNOWN_KIND, edges.kind[chosen], UNKNOWN_KIND]
    name, within = (np.r_[NONE, column[chosen], NONE] for column in (edges.name, edges.within))
    real = end > start
    return CriticalPath(start[real], end[real], kind[real], name[real], within[real])


def _cost(time: int, part: TraceWindow) -> dict[str, Any]:
    return {"total_us": time / 1000, "percent": 100 * time / part.length}


def _parts(trace: Trace, chains: Chains, path: CriticalPath, part: TraceWindow) -> list[dict[str, Any]]:
    """Return the time of the path per kind and name, most first."""
    edges, rows = chains.moments.edges, []
    for place, ((kind, name), time, count) in enumerate(path.sums("kind", "name")):
        replayed = place < MOST_REPLAYS and kind != UNKNOWN_KIND
        gain = _gain(chains, (edges.kind == kind) & (edges.name == name), part) if replayed else None
        facts = {"kind": PATH_KINDS[kind], "name": trace.names[name] if name != NONE else "", "count": count}
        rows.append(facts | _cost(time, part) | {"gain_percent": gain})
    return rows


def _outer(trace: Trace, chains: Chains, path: CriticalPath, part: TraceWindow) -> list[dict[str, Any]]:
    """Return the time of the path on the host per outermost operator or annotation, most first."""
    rows: list[dict[str, Any]] = []
    for (name,), time, _ in path.sums("within"):
        if name != NONE:
            replayed = len(rows) < MOST_REPLAYS
            gain = _gain(chains, chains.moments.edges.within == name, part) if replayed else None
            rows.append({"name": trace.names[name]} | _cost(time, part) | {"gain_percent": gain})
    return rows


def _gain(chains: Chains, removed: Mask, part: TraceWindow) -> float:
    """Return by how many percent the step would be shorter if some edges took no time."""
    moments = chains.moments
    new = chains.replay(np.where(removed, 0, moments.edges.length))
    return 100 * int(moments.time[moments.last] - new[moments.last]) / part.length


@dataclass(frozen=True)
class Chains:
    """A graph in which edges without a fork or a junction between them are one: most of what a thread does."""

    moments: Graph
    last: Integers
    """For each edge of the graph the last edge of its chain."""
    kept: Integers
    """The last edge of each chain, ordered by target."""
    source: list[int]
    target: list[int]

    @classmethod
    def of(cls, moments: Graph) -> Chains:
        """Join the edges of a graph."""
        edges, count = moments.edges, len(moments.time)
        every = np.arange(len(edges.source), dtype=np.int64)
        plain = (np.bincount(edges.target, minlength=count) == 1) & (np.bincount(edges.source, minlength=count) == 1)
        leaving = np.full(count, NONE, dtype=np.int64)
        leaving[edges.source] = every
        last = np.where(plain[edges.target], leaving[edges.target], every)
        while ((further := last[last]) != last).any():
            last = further
        first = every[~plain[edges.source]]
        begin = np.full(len(every), NONE, dtype=np.int64)
        begin[last[first]] = edges.source[first]
        kept = every[~plain[edges.target]]
        return cls(moments, last, kept, begin[kept].tolist(), edges.target[kept].tolist())

    def replay(self, length: Integers) -> list[int]:
        """Return when each moment comes if the edges take these times; one without edges keeps its time.

        Moments inside a chain keep theirs too: nothing waits for them.
        """
        lengths = np.bincount(self.last, weights=length, minlength=len(length)).astype(np.int64)[self.kept]
        new: list[int] = self.moments.time.tolist()
        reached = NONE
        for source, target, time in zip(self.source, self.target, lengths.tolist(), strict=True):
            arrival = new[source] + time
            if target != reached or arrival > new[target]:
                new[target] = arrival
                reached = target
        return new


def findings(path: dict[str, Any] | None) -> list[Finding]:
    """Report, from what `critical_path` returns, whether the host is the limit, and which part would save most."""
    if path is None:
        return []
    host, gain = path["host"]["percent"], path["host"]["gain_percent"]
    kinds, parts = path["kinds"][:5], path["parts"][:5]
    evidence = {"of": path["of"], "length_us": path["length_us"], "kinds": kinds, "parts": parts}
    found = []
    on_device = any(entry["kind"] in DEVICE_KINDS for entry in path["kinds"])
    # If the device has work all the time, a path through the host is one of many: shortening it gains nothing.
    if host >= 100 * HOST_BOUND_RATIO and on_device and gain >= 100 * HOST_WORTH:
        text = f"{host:.0f} % of the critical path of {path['of']} is on the host"
        text += f": at most {gain:.0f} % could be saved there"
        loading = max(path["outer"], key=lambda row: float(row["percent"]), default=None)
        advice = "launch fewer, larger kernels (torch.compile, CUDA graphs); take synchronising calls out of the step"
        if loading is not None and LOADING.search(str(loading["name"])):
            advice = remedy("input_bound")
        found.append(Finding("critical_path_host", text, WARNING, advice, evidence, gain / 100))
    rows = [row for row in (*path["parts"], *path["outer"]) if _benefit(row) < WRAPS]
    best = max(rows, key=_benefit, default=None)
    if best is not None and _benefit(best) >= 100 * WORTH_RATIO:
        what = GAPS if best.get("kind") == KINDS[GAP] else f"{best.get('kind', '')} {short_name(best['name'])}".strip()
        text = f"{what}: {path['of']} would be at most {best['gain_percent']:.0f} % shorter if that took no time"
        found.append(Finding("critical_path", text, INFO, "", evidence | {"part": best}, best["gain_percent"] / 100))
    return found


def _benefit(row: dict[str, Any]) -> float:
    return float(row["gain_percent"] or 0.0)
