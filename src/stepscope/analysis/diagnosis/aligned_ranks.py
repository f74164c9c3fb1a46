"""The steps of all ranks side by side: an array of rank by step, whatever the clocks of their nodes say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.stragglers.pace import StepTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.analysis.diagnosis.evidence import RankSteps
    from stepscope.core.arrays import Floats, Integers


MOST_CELLS = 4_000_000
"""Ranks times steps: of more, the newest steps are taken."""
GRID = 400
"""Equal parts of a long run, whose steps are known in blocks only."""
ENOUGH = 0.5
"""A rank with less than this share of the steps of the longest is left out: it joined late, or left."""


def aligned(
    every: Sequence[RankSteps],
    nodes: Mapping[int, str] | None = None,
    facts: Mapping[int, Mapping[str, float]] | None = None,
) -> StepTable | None:
    """Return the steps that all ranks did, without the first; None if fewer than two ranks have any."""
    some = _present(every)
    if len(some) < 2:
        return None
    names = sorted({name for steps in some for name in steps.phases})
    if any(steps.weight is not None for steps in some):
        step, seconds, phases = _on_grid(some, names)
    else:
        step, seconds, phases = _one_by_one(some, names)
    ranks = [steps.rank for steps in some]
    return StepTable(
        *(ranks, step, seconds, phases),
        [(nodes or {}).get(rank, "") for rank in ranks],
        [(facts or {}).get(rank, {}) for rank in ranks],
        float(np.diff(step).mean()) if len(step) > 1 and some[0].weight is not None else 1.0,
    )


def _present(every: Sequence[RankSteps]) -> list[RankSteps]:
    """Return the ranks that did enough of the steps."""
    some = [steps for steps in every if len(steps) and (steps.measured.any() or not steps.phases)]
    longest = max((steps.count for steps in some), default=0)
    return [steps for steps in some if steps.count >= ENOUGH * longest]


def _one_by_one(some: Sequence[RankSteps], names: Sequence[str]) -> tuple[Integers, Floats, dict[str, Floats]]:
    chosen = [steps.measured if steps.phases else np.ones(len(steps), bool) for steps in some]
    common = np.unique(some[0].step[chosen[0]])
    for steps, kept in zip(some[1:], chosen[1:], strict=True):
        common = np.intersect1d(common, steps.step[kept])
    common = common[1:][-(MOST_CELLS // (len(some) * (1 + len(names)))) :]
    places = [_places(steps.step[kept], common) for steps, kept in zip(some, chosen, strict=True)]
    seconds = np.stack(
        [np.nan_to_num(steps.seconds[kept][at]) for steps, kept, at in zip(some, chosen, places, strict=True)]
    )
    none = np.zeros(len(common))
    phases = {
        name: np.stack(
            [
                np.nan_to_num(steps.phases[name][kept][at]) if name in steps.phases else none
                for steps, kept, at in zip(some, chosen, places, strict=True)
            ]
        )
        for name in names
    }
    return common, seconds, phases


def _places(step: Integers, common: Integers) -> Integers:
    """Return where the common steps are; of a step that was done twice, the last."""
    order = np.argsort(step, kind="stable")
    return np.asarray(order[np.searchsorted(step[order], common, "right") - 1])


def _on_grid(some: Sequence[RankSteps], names: Sequence[str]) -> tuple[Integers, Floats, dict[str, Floats]]:
    """Return means over equal parts of the steps that all ranks did: their blocks begin and end at different steps."""
    first = max(int(steps.step[0]) for steps in some)
    last = min(int(steps.step[-1]) for steps in some)
    size = min(GRID, min(len(steps) for steps in some) - 1, last - first)
    if size < 1:
        empty = np.empty((len(some), 0))
        return np.empty(0, np.int64), empty, dict.fromkeys(names, empty)
    edges = np.linspace(first, last, size + 1)
    phases = {name: np.stack([_means(steps, steps.phases.get(name), edges) for steps in some]) for name in names}
    seconds = np.stack([_means(steps, steps.seconds, edges) for steps in some])
    return edges[1:].astype(np.int64), seconds, phases


def _means(steps: RankSteps, values: Floats | None, edges: Floats) -> Floats:
    """Return the mean of a value over the steps between neighbouring edges."""
    if values is None:
        return np.zeros(len(edges) - 1)
    order = np.argsort(steps.step, kind="stable")
    weight = steps.weights[order]
    total, count = np.cumsum(np.nan_to_num(values[order]) * weight), np.cumsum(weight)
    at = steps.step[order].astype(np.float64)
    spent, done = np.diff(np.interp(edges, at, total)), np.diff(np.interp(edges, at, count))
    return np.asarray(np.divide(spent, done, out=np.zeros(len(spent)), where=done > 0))
