"""Operators of a trace: their time on the host and of what they launched, with and without those inside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.trace.links import Links, link
from stepscope.analysis.trace.spans import NONE, alone, outermost, own_time, parents, with_children
from stepscope.analysis.trace.window import STEP
from stepscope.core.trace import ABSENT, RUNTIME

if TYPE_CHECKING:
    from stepscope.analysis.trace.window import TraceWindow
    from stepscope.core.arrays import Integers
    from stepscope.core.trace import Trace


MOST_SHAPES = 5
"""Shapes that are named per operator: those with the most device time, or host time without a device."""


def operator_table(trace: Trace, window: TraceWindow, links: Links | None = None) -> list[dict[str, Any]]:
    """Return one row per operator or annotation that began in the window, most device time first.

    `total_us` and `self_us` are host time with and without the operators inside; an operator inside one of the same
    name counts once in the total. `device_us` and `device_total_us` likewise for what was launched. `gain_percent`
    is the share of the window in which only its own kernels ran; without a device, its own host time.
    """
    links = link(trace) if links is None else links
    device = _own_device_time(trace, window, links)
    rows, place = _operators(trace, window, links)
    if not len(rows):
        return []
    parent = parents(trace.lane[rows], trace.start[rows], trace.end[rows])
    names, code = np.unique(trace.name[rows], return_inverse=True)
    once = outermost(code, parent)
    own, below = own_time(trace.start[rows], trace.end[rows], parent), with_children(device[place], parent)
    columns = {
        "calls": np.bincount(code),
        "total": np.bincount(code, weights=(trace.end[rows] - trace.start[rows]) * once),
        "self": np.bincount(code, weights=own),
        "device": np.bincount(code, weights=device[place]),
        "device_total": np.bincount(code, weights=below * once),
        "gain": _gains(trace, window, links, place, code) if len(links.device) else np.bincount(code, weights=own),
    }
    shapes = _shapes(trace, rows, code, device[place] if len(links.device) else own)
    order = np.lexsort((-columns["self"], -columns["device"]))
    return [
        _row(
            trace.names[names[at]],
            {key: int(column[at]) for key, column in columns.items()},
            shapes.get(at, []),
            window,
        )
        for at in order.tolist()
    ]


def _row(name: str, cost: dict[str, int], shapes: list[dict[str, Any]], window: TraceWindow) -> dict[str, Any]:
    return {
        "name": name,
        "calls": cost["calls"],
        "total_us": cost["total"] / 1000,
        "self_us": cost["self"] / 1000,
        "device_us": cost["device"] / 1000,
        "device_total_us": cost["device_total"] / 1000,
        "gain_percent": min(100.0, 100 * cost["gain"] / max(window.length, 1)),
        "shapes": shapes,
    }


def _operators(trace: Trace, window: TraceWindow, links: Links) -> tuple[Integers, Integers]:
    """Return rows and places (in `links.host`) of the operators and annotations that this window is about.

    Launching runs ahead of the device: what launched something of the window belongs to it, wherever it lies itself.
    """
    profiler = [code for code, name in enumerate(trace.names) if STEP.match(name)]
    start, host = trace.start[links.host], links.host
    wanted = (start >= window.start) & (start < window.end)
    if len(links.device):
        inside = (trace.end[links.device] > window.start) & (trace.start[links.device] < window.end)
        above = links.operator[inside]
        while len(above := np.unique(above[above != NONE])):
            wanted[above] = True
            above = links.parent[above]
    place = np.flatnonzero(wanted & (trace.kind[host] != RUNTIME) & ~np.isin(trace.name[host], profiler))
    return host[place], place


def _own_device_time(trace: Trace, window: TraceWindow, links: Links) -> Integers:
    """Return for each host event the device time in the window of what it launched itself."""
    time = np.zeros(len(links.host), dtype=np.int64)
    known = links.operator != NONE
    rows = links.device[known]
    start, end = (np.clip(column[rows], window.start, window.end) for column in (trace.start, trace.end))
    np.add.at(time, links.operator[known], end - start)
    return time


def _gains(trace: Trace, window: TraceWindow, links: Links, place: Integers, code: Integers) -> Integers:
    """Return for each operator (by code) the time in which only its own kernels ran."""
    groups = int(code.max(initial=-1)) + 1
    code_of = np.full(len(links.host) + 1, groups, dtype=np.int64)
    code_of[place] = code
    start, end = (np.clip(column[links.device], window.start, window.end) for column in (trace.start, trace.end))
    return alone(start, end, code_of[links.operator], groups + 1)[:groups]


def _shapes(trace: Trace, rows: Integers, code: Integers, cost: Integers) -> dict[int, list[dict[str, Any]]]:
    """Return for each operator (by code) its shapes with calls and time, most time first."""
    shape = trace.text("Input Dims")[rows]
    known = shape != ABSENT
    if not known.any():
        return {}
    pairs, pair = np.unique(code[known] * len(trace.words) + shape[known], return_inverse=True)
    time, calls = np.bincount(pair, weights=cost[known]), np.bincount(pair)
    found: dict[int, list[dict[str, Any]]] = {}
    for at in np.argsort(-time, kind="stable").tolist():
        operator, word = divmod(int(pairs[at]), len(trace.words))
        listed = found.setdefault(operator, [])
        if len(listed) < MOST_SHAPES:
            listed.append({"shapes": trace.words[word], "calls": int(calls[at]), "time_us": float(time[at]) / 1000})
    return found
