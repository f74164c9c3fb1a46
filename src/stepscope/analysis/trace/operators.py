"""Operators of a trace: host time, and device time of what they launched, with and without the operators inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.trace.spans import NONE, alone, outermost, own_time, parents, with_children
from stepscope.analysis.trace.window import STEP, named_like
from stepscope.core.trace import ABSENT, RUNTIME

if TYPE_CHECKING:
    from stepscope.analysis.trace.links import Links
    from stepscope.analysis.trace.window import TraceWindow
    from stepscope.core.arrays import Integers
    from stepscope.core.trace import Trace


MOST_SHAPES = 5
"""Shapes that are named per operator: those with the most device time, or host time without a device."""


def operator_table(trace: Trace, window: TraceWindow, links: Links) -> list[dict[str, Any]]:
    """Return one row per operator or annotation that began in the window, most device time first.

    `total_us` and `self_us` are host time with and without the operators inside; an operator inside one of the same
    name counts once in the total. `device_total_us` and `device_us` are the device time of what they launched.
    `gain_percent` is the share of the window in which only its own kernels ran; without a device, its own host time.
    """
    place = _operators(trace, window, links)
    if not len(place):
        return []
    start, end = (np.clip(column[links.device], window.start, window.end) for column in (trace.start, trace.end))
    launched, spent = links.operator != NONE, np.zeros(len(links.host), dtype=np.int64)
    np.add.at(spent, links.operator[launched], (end - start)[launched])
    rows, device = links.host[place], spent[place]
    parent = parents(trace.lane[rows], trace.start[rows], trace.end[rows])
    names, code = np.unique(trace.name[rows], return_inverse=True)
    once = outermost(code, parent)
    own, below = own_time(trace.start[rows], trace.end[rows], parent), with_children(device, parent)
    calls = np.bincount(code).tolist()
    times = {
        "total_us": (trace.end[rows] - trace.start[rows]) * once,
        "self_us": own,
        "device_us": device,
        "device_total_us": below * once,
    }
    sums = {key: np.bincount(code, weights=time) for key, time in times.items()}
    gain = sums["self_us"]
    if len(links.device):
        code_of = np.full(len(links.host) + 1, len(names), dtype=np.int64)
        code_of[place] = code
        gain = alone(start, end, code_of[links.operator], len(names) + 1)
    shapes = _shapes(trace, rows, code, device if len(links.device) else own)
    return [
        {
            "name": trace.names[names[at]],
            "calls": calls[at],
            **{key: float(time[at]) / 1000 for key, time in sums.items()},
            "gain_percent": min(100.0, 100 * float(gain[at]) / max(window.length, 1)),
            "shapes": shapes.get(at, []),
        }
        for at in np.lexsort((-sums["self_us"], -sums["device_us"])).tolist()
    ]


def _operators(trace: Trace, window: TraceWindow, links: Links) -> Integers:
    """Return the places (in `links.host`) of the operators and annotations that this window is about.

    Launching runs ahead of the device: what launched something of the window belongs to it, wherever it is itself.
    """
    start, host = trace.start[links.host], links.host
    wanted = (start >= window.start) & (start < window.end)
    if len(links.device):
        inside = (trace.end[links.device] > window.start) & (trace.start[links.device] < window.end)
        above = links.operator[inside]
        while len(above := np.unique(above[above != NONE])):
            wanted[above] = True
            above = links.parent[above]
    return np.flatnonzero(wanted & (trace.kind[host] != RUNTIME) & ~named_like(trace, STEP)[host])


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
