"""Who is late over the course of a run: always, since some step, or in some steps only."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.analysis.series.robust import median
from stepscope.analysis.series.rolling import moving_median
from stepscope.analysis.stragglers.lateness import AS_LATE, Lateness, judge
from stepscope.analysis.stragglers.pace import StepTable, paces

if TYPE_CHECKING:
    from stepscope.core.arrays import Floats, Mask


FEWEST = 10
"""Minimum steps to judge by."""
BLOCKS = 20
"""Parts of a run that are judged one by one, if nobody is late in all of it."""
IN_A_ROW, AT_THE_END = 3, 2
"""Parts in a row in which the same rank is late; at the end of the run, where it may go on."""
EDGE = 9
"""Width of the moving median that finds the step at which a rank became late."""
FEWEST_LATE = 5
"""Minimum late steps, if only some steps are late."""
SAME_RANK = 0.8
"""Share of these steps in which it must be the same rank."""
QUARTERS = 4
"""Late steps must occur in all quarters of the run but one: the first steps, or one hiccup, are no habit."""
OUTLIER = 0.3
"""A step is late if its slowest rank exceeds the others by this share of a usual step."""
HOST_OF_FIRST = ("other", "logging")
"""Phases in which rank 0 may do now and then what no other rank does."""


def lateness_of(table: StepTable, share: float) -> Lateness | None:
    """Return who is late by at least a share of a step, and since when; None if nobody is."""
    count = len(table.step)
    if len(table.ranks) < 2 or count < _fewest(table):
        return None
    found = judge(paces(table), share) or _for_a_while(table, share)
    if table.weight > 1:  # means do not tell what a rank always does from what it does now and then
        return found if found is None or not _is_planned(found) else None
    return found or _now_and_then(table, share)


def _fewest(table: StepTable) -> int:
    """Return how many columns of a table are enough to judge by."""
    return max(1, math.ceil(FEWEST / table.weight))


def _is_planned(late: Lateness) -> bool:
    """Return whether a rank may do this now and then for all others: rank 0 prints, writes and uploads."""
    return late.first.rank == 0 and late.first.phase in HOST_OF_FIRST


class _Part(NamedTuple):
    first: int
    end: int
    late: Lateness | None


def _for_a_while(table: StepTable, share: float) -> Lateness | None:
    """Return who is late in a part of the run; of several such parts, in the one that costs most."""
    count = len(table.step)
    blocks = min(BLOCKS, count // _fewest(table))
    if blocks < AT_THE_END:
        return None
    edges = np.linspace(0, count, blocks + 1).astype(int).tolist()
    parts = [
        _Part(first, end, judge(paces(table.part(slice(first, end))), share))
        for first, end in itertools.pairwise(edges)
    ]
    best: tuple[float, Lateness] | None = None
    for stretch in _stretches(parts):
        first, end = stretch[0].first, stretch[-1].end
        if len(stretch) < (AT_THE_END if end == count else IN_A_ROW):
            continue
        found = judge(paces(table.part(slice(first, end))), share)
        if found is None:
            continue
        first, end = _widened(table, found, first, end)
        if end - first < _fewest(table):
            continue
        cost = found.seconds * (end - first)
        if best is None or cost > best[0]:
            since = int(table.step[first]) if table.weight == 1 or first == 0 else int(table.step[first - 1]) + 1
            until = None if end == count else int(table.step[end - 1])
            best = cost, found.between(since, until)
    return best[1] if best and best[0] >= _cost_of_others(parts, best[1]) else None


def _cost_of_others(parts: list[_Part], late: Lateness) -> float:
    """Return what other ranks cost in the rest of the run: where each is late for a while, it is nobody's fault."""
    others = [part for part in parts if part.late is not None and part.late.first.rank != late.first.rank]
    return sum(part.late.seconds * (part.end - part.first) for part in others if part.late is not None)


def _widened(table: StepTable, late: Lateness, first: int, end: int) -> tuple[int, int]:
    """Return the exact steps in which a rank is late: parts of the run begin and end at any step."""
    row = list(table.ranks).index(late.first.rank)
    high = np.zeros(len(table.step), bool)
    for values in (table.own, table.working):
        if values is not None:
            beyond = values[row] - np.median(np.delete(values, row, axis=0), axis=0)
            high |= moving_median(beyond, EDGE if table.weight == 1 else 1) >= AS_LATE * late.seconds
    edges = np.flatnonzero(~high)
    middle = (first + end) // 2
    before, after = edges[edges < middle], edges[edges > middle]
    if not high[middle]:
        return first, end
    return int(before[-1]) + 1 if len(before) else 0, int(after[0]) if len(after) else len(high)


def _stretches(parts: list[_Part]) -> list[list[_Part]]:
    """Return neighbouring parts in which the same rank is the latest."""
    found: list[list[_Part]] = []
    for _, group in itertools.groupby(parts, key=lambda part: part.late.first.rank if part.late else None):
        stretch = list(group)
        if stretch[0].late is not None:
            found.append(stretch)
    return found


def _now_and_then(table: StepTable, share: float) -> Lateness | None:
    """Return the rank that is late in some steps only, such as every tenth, if that costs enough altogether."""
    own, usual = table.own, median(table.seconds.mean(axis=0))
    ordered = np.sort(own, axis=0)
    others = ordered[(len(own) - 1) // 2]  # of an even number the lower one: two ranks count from the faster
    beyond = ordered[-1] - others
    late = beyond > OUTLIER * usual
    total = float(table.seconds.mean(axis=0).sum())
    if int(late.sum()) < FEWEST_LATE or total <= 0 or float(beyond[late].sum()) / total < share:
        return None
    quarters = np.unique(np.flatnonzero(late) * QUARTERS // len(late))
    if len(quarters) < QUARTERS - 1:
        return None
    found = judge(paces(_only(table, late)), OUTLIER)
    if found is None or len(found.late) > 1:
        return None
    row = list(table.ranks).index(found.first.rank)
    same = float((own.argmax(axis=0) == row)[late].mean())
    if same < SAME_RANK or _is_planned(found):
        return None
    return replace(found, often=float(late.mean()))


def _only(table: StepTable, chosen: Mask) -> StepTable:
    phases: dict[str, Floats] = {name: each[:, chosen] for name, each in table.phases.items()}
    return replace(table, step=table.step[chosen], seconds=table.seconds[:, chosen], phases=phases)
