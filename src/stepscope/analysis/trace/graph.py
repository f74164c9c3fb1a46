"""What waited for what: moments of host threads and device streams, and the edges along which time passes between them.

A moment is the beginning or end of device work, or a change of what a thread does. It comes when all its edges have
arrived; the edge that arrived last in the trace is the *binding* one. A trace shows that work on one stream runs in
order, that work follows its launch, and that a synchronising call or a blocking copy returns after the device work that
ended in it. Few traces record waits between streams (work that was ready started when another stream ended something)
and between threads (a thread did nothing until another one finished, as for the backward thread): these are inferred.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.analysis.trace.roles import COMMUNICATION, COPY, roles
from stepscope.analysis.trace.spans import NONE, parents, pieces, roots
from stepscope.analysis.trace.window import STEP, named_like
from stepscope.core.trace import ANNOTATION, OPERATOR, RUNTIME

if TYPE_CHECKING:
    from stepscope.analysis.trace.links import Links
    from stepscope.analysis.trace.window import TraceWindow
    from stepscope.core.arrays import Integers, Mask
    from stepscope.core.trace import Trace


KINDS = (
    *("compute", "copy", "communication"),
    *("launch delay", "stream wait"),
    *("operator", "annotation", "runtime call", "synchronisation", "host gap"),
)
"""What the time of an edge is spent on: the device at work; work that waits to start; the host."""
COMPUTE, COPYING, EXCHANGE, LAUNCH, WAIT, OPERATE, ANNOTATE, CALL, SYNC, GAP = range(len(KINDS))

BLOCKING = re.compile(r"Synchronize|^(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol)?$|^cuMemcpy\w*_v2$|^(cuda|hip)Free$")
"""Runtime calls that return only after device work has ended."""
LATENCY = 10_000
"""ns between a launch and its start on an empty stream where the trace shows none: 5 to 10 µs are usual."""


class Edges(NamedTuple):
    """Edges by the moment that they lead to."""

    source: Integers
    target: Integers
    length: Integers
    """ns that pass at least."""
    kind: Integers
    name: Integers
    """Place in the trace's names; `NONE`."""
    within: Integers
    """The same of the outermost event of the thread."""

    def of(self, chosen: Mask | Integers) -> Edges:
        """Return some of them."""
        return Edges(*(column[chosen] for column in self))


@dataclass(frozen=True)
class Graph:
    """Moments of a window in order of time, and the edges between them, ordered by target. No edge leads back."""

    time: Integers
    edges: Edges
    binding: Integers
    """For each moment the place of its binding edge; `NONE` where the window begins."""
    last: int
    """The moment at which the window's work is done; `NONE` if there is no work."""


@dataclass(frozen=True)
class _Device:
    """Device work of a window, by start."""

    row: Integers
    start: Integers
    end: Integers
    stream: Integers
    called: Integers
    """Start of the launching call."""
    lane: Integers
    """Thread of that call; `NONE` if the call is unknown."""


@dataclass(frozen=True)
class _Host:
    """Changes of what the launching threads do, by thread and time; the last of each thread leads nowhere."""

    thread: Integers
    time: Integers
    row: Integers
    """What the thread does from then on: a row of the trace; `NONE` for nothing."""
    top: Integers
    """The outermost event around it: a row of the trace, or `NONE`."""
    ends: Mask
    """Whether the thread's last piece ends here."""


def graph(trace: Trace, window: TraceWindow, links: Links) -> Graph:
    """Return what waited for what in a window."""
    device = _device(trace, window, links)
    host = _host(trace, window, device.lane[device.lane != NONE])
    count = len(device.row)
    time = np.concatenate([device.start, device.end, host.time])
    # At one moment: what ends, then what the host does, then what starts.
    rank = np.repeat([2, 0, 1], [count, count, len(host.time)])
    order = np.lexsort((rank, time))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    parts = (_work(trace, links, device), *_threads(trace, host, device), *_starts(device, host))
    edges = Edges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    edges = edges._replace(source=place[edges.source], target=place[edges.target])
    edges = edges.of(edges.source < edges.target)
    ends = device.end if count else host.time
    last = int(place[count + int(np.argmax(ends))]) if len(ends) else NONE
    return _bound(time[order], edges, last)


def _bound(time: Integers, edges: Edges, last: int) -> Graph:
    """Choose for each moment the edge that arrived last, and let it take all the time that passed."""
    passed = time[edges.target] - time[edges.source]
    length = np.minimum(edges.length, passed)
    order = np.lexsort((time[edges.source] + length, edges.target))
    edges, passed, length = edges.of(order), passed[order], length[order]
    chosen = np.flatnonzero(np.diff(edges.target, append=NONE))
    length[chosen] = passed[chosen]
    binding = np.full(len(time), NONE, dtype=np.int64)
    binding[edges.target[chosen]] = chosen
    return Graph(time, edges._replace(length=length), binding, last)


def _device(trace: Trace, window: TraceWindow, links: Links) -> _Device:
    """Return the device work of a window."""
    inside = (trace.end[links.device] > window.start) & (trace.start[links.device] < window.end)
    row, call = links.device[inside], links.call[inside]
    known = call != NONE
    called, lane = np.full(len(row), NONE, dtype=np.int64), np.full(len(row), NONE, dtype=np.int64)
    called[known] = trace.start[links.host[call[known]]]
    lane[known] = trace.lane[links.host[call[known]]]
    start, end = np.maximum(trace.start[row], window.start), np.minimum(trace.end[row], window.end)
    return _Device(row, start, np.maximum(end, start + 1), trace.lane[row].astype(np.int64), called, lane)


def _host(trace: Trace, window: TraceWindow, lanes: Integers) -> _Host:
    """Return what the launching threads did in a window (all threads if none launches)."""
    kind = (trace.kind == OPERATOR) | (trace.kind == ANNOTATION) | (trace.kind == RUNTIME)
    inside = kind & (trace.end > window.start) & (trace.start < window.end) & ~named_like(trace, STEP)
    if not len(lanes):
        lanes = trace.lane[inside & (trace.kind != RUNTIME)].astype(np.int64)
    row = np.flatnonzero(inside & np.isin(trace.lane, np.unique(lanes)))
    lane = trace.lane[row].astype(np.int64)
    start, end = np.maximum(trace.start[row], window.start), np.minimum(trace.end[row], window.end)
    parent = parents(lane, start, end)
    found = pieces(lane, start, end, parent)
    last = np.flatnonzero(np.diff(found.thread, append=NONE))
    thread, time = np.r_[found.thread, found.thread[last]], np.r_[found.start, found.end[last]]
    event = np.r_[found.event, np.full(len(last), NONE)]
    # The last entry stands for `NONE`: indexing with -1 finds it.
    rows, tops = np.r_[row, NONE], np.r_[row[roots(parent)], NONE]
    ends = np.r_[np.zeros(len(found.thread), dtype=np.bool_), np.ones(len(last), dtype=np.bool_)]
    order = np.lexsort((ends, time, thread))
    return _Host(thread[order], time[order], rows[event[order]], tops[event[order]], ends[order])


def _work(trace: Trace, links: Links, device: _Device) -> Edges:
    """Return the edges from the start to the end of device work."""
    role = roles(trace, links)[device.row]
    kind = np.select([role == COMMUNICATION, role == COPY], [EXCHANGE, COPYING], COMPUTE)
    count = len(device.row)
    start = np.arange(count, dtype=np.int64)
    name = trace.name[device.row].astype(np.int64)
    return Edges(start, start + count, device.end - device.start, kind, name, np.full(count, NONE))


def _starts(device: _Device, host: _Host) -> list[Edges]:
    """Return the edges to the start of device work: from its stream, its launch, and another stream."""
    count = len(device.row)
    order = np.lexsort((device.start, device.stream))
    same = np.flatnonzero(device.stream[order][1:] == device.stream[order][:-1])
    before, after = order[same], order[same + 1]
    stream = _edges(before + count, after, 0, WAIT)
    known = np.flatnonzero(device.lane != NONE)
    moment = _latest(host, device.lane[known], device.called[known])
    known, moment = known[moment != NONE], moment[moment != NONE]
    latency = _latency(device, before, after)
    launch = _edges(moment + 2 * count, known, device.called[known] - host.time[moment] + latency, LAUNCH)
    ready = np.full(count, np.iinfo(np.int64).min)
    ready[after] = device.end[before]
    called = np.where(device.lane != NONE, device.called + latency, ready)
    return [stream, launch, _other_streams(device, np.maximum(ready, called), latency)]


def _other_streams(device: _Device, ready: Integers, latency: int) -> Edges:
    """Return an edge for work that started, later than it could have, right when another stream ended something."""
    count = len(device.row)
    by_end = np.argsort(device.end, kind="stable")
    at = np.searchsorted(device.end[by_end], device.start, side="right") - 1
    late = np.flatnonzero((at >= 0) & (device.start > ready + latency) & (ready > np.iinfo(np.int64).min))
    other = by_end[at[late]]
    right = (device.start[late] - device.end[other] <= latency) & (device.end[other] > ready[late])
    return _edges(other[right] + count, late[right], 0, WAIT)


def _latency(device: _Device, before: Integers, after: Integers) -> int:
    """Return the usual ns from launch to start where the stream was empty."""
    free = np.zeros(len(device.row), dtype=np.bool_)
    free[after] = device.end[before] <= device.called[after]
    delay = (device.start - device.called)[free & (device.lane != NONE) & (device.start > device.called)]
    return int(np.median(delay)) if len(delay) else LATENCY


def _threads(trace: Trace, host: _Host, device: _Device) -> list[Edges]:
    """Return the edges along each thread, and those to it from what it waited for: device work, or another thread.

    What a thread does takes its time, but waiting takes none of its own.
    """
    here = np.flatnonzero(~host.ends)
    row, length = host.row[here], host.time[here + 1] - host.time[here]
    kind = np.select(
        [row == NONE, trace.kind[row] == OPERATOR, trace.kind[row] == ANNOTATION], [GAP, OPERATE, ANNOTATE], CALL
    )
    names = np.r_[trace.name, NONE].astype(np.int64)
    waits, ended = _blocking(trace, host, here, device)
    idle, other = _handed(trace, host, here)
    kind[waits], length[waits], length[idle] = SYNC, 0, 0
    count, name = len(device.row), names[row[waits]]
    along, after = here + 2 * count, here + 1 + 2 * count
    edges = [Edges(along, after, length, kind, names[row], names[host.top[here]])]
    edges.append(_edges(ended + count, after[waits], 0, SYNC, name))
    for stream in np.unique(device.stream).tolist():
        # Which streams a call waited for is not recorded: all count, so that no gain is overstated.
        own = np.flatnonzero(device.stream == stream)
        at = np.searchsorted(device.end[own], host.time[here[waits] + 1], side="right") - 1
        known = at >= 0
        edges.append(_edges(own[at[known]] + count, after[waits[known]], 0, SYNC, name[known]))
    first = np.flatnonzero(np.diff(host.thread, prepend=NONE))
    begun = _last_done(host, first)
    known = begun != NONE
    edges.append(_edges(other + 2 * count, after[idle], 0, GAP))
    edges.append(_edges(begun[known] + 2 * count, first[known] + 2 * count, 0, GAP))
    return edges


def _blocking(trace: Trace, host: _Host, here: Integers, device: _Device) -> tuple[Integers, Integers]:
    """Return which pieces waited for device work, and the work whose end they waited for: the last one inside."""
    if not len(here) or not len(device.row):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    row = host.row[here]
    calls = (row != NONE) & (trace.kind[row] == RUNTIME)
    sync = calls & named_like(trace, BLOCKING, trace.kind == RUNTIME)[row]
    by_end = np.argsort(device.end, kind="stable")
    at = np.searchsorted(device.end[by_end], host.time[here + 1], side="right") - 1
    last = by_end[np.maximum(at, 0)]
    inside = (at >= 0) & (device.end[last] > host.time[here])
    own = calls & (trace.correlation[row] > 0) & (trace.correlation[row] == trace.correlation[device.row[last]])
    waits = np.flatnonzero((sync | own) & inside)
    return waits, last[waits]


def _handed(trace: Trace, host: _Host, here: Integers) -> tuple[Integers, Integers]:
    """Return which gaps ended after another thread had done something in them, and the moment when it was done.

    The own time of an annotation is a gap too: it only has a name, such as `backward`.
    """
    row = host.row[here]
    gap = np.flatnonzero((row == NONE) | (trace.kind[row] == ANNOTATION)) if len(row) else row
    done = _last_done(host, here[gap] + 1)
    real = (done != NONE) & (host.time[done] > host.time[here[gap]])
    return gap[real], done[real]


def _last_done(host: _Host, moment: Integers) -> Integers:
    """Return for each moment the last one at which another thread had finished something; `NONE`."""
    found = np.full(len(moment), NONE, dtype=np.int64)
    best = np.full(len(moment), np.iinfo(np.int64).min)
    does = np.r_[False, (host.row[:-1] != NONE) & ~host.ends[:-1]] if len(host.row) else np.zeros(0, dtype=np.bool_)
    for thread in np.unique(host.thread).tolist():
        ends = np.flatnonzero((host.thread == thread) & does)
        at = np.searchsorted(host.time[ends], host.time[moment], side="right") - 1
        known = (at >= 0) & (host.thread[moment] != thread)
        time = np.where(known, host.time[ends[at]], best) if len(ends) else best
        newer = known & (time > best)
        found[newer], best[newer] = ends[at[newer]], time[newer]
    return found


def _latest(host: _Host, thread: Integers, time: Integers) -> Integers:
    """Return for each thread and time the last moment of that thread until then; `NONE`."""
    found = np.full(len(thread), NONE, dtype=np.int64)
    for one in np.unique(thread).tolist():
        first, last = np.searchsorted(host.thread, [one, one + 1])
        own = thread == one
        at = first + np.searchsorted(host.time[first:last], time[own], side="right") - 1
        found[own] = np.where(at >= first, at, NONE)
    return found


def _edges(
    source: Integers, target: Integers, length: Integers | int, kind: int, name: Integers | None = None
) -> Edges:
    """Return edges of one kind."""
    lengths = np.broadcast_to(length, source.shape).astype(np.int64)
    none = np.full(len(source), NONE, dtype=np.int64)
    return Edges(source, target, lengths, np.full(len(source), kind), none if name is None else name, none)
