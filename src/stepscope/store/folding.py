"""The ranks of a metric as one curve with the band of their extremes, and the rank that is farthest from the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.store.points import series_bounds
from stepscope.store.pyramid import Blocks, ordered
from stepscope.store.series import reduced

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTABLE = 0.01
"""A rank is notable if its mean distance from the mean of all exceeds this share of the height of the curve of means,
and of its highest value. The page has the same rule for the few ranks that it folds itself: chart_line.ts."""


def fold(blocks: Blocks, points: int, *, by_time: bool = False, worst: bool = False) -> Blocks:
    """Join the ranks of each attempt on a grid of steps, or of time if there are no steps; their rank is 0 then.

    With `worst`, the curve of the rank that is farthest from the mean is there too, under its rank + 1.
    """
    if not len(blocks):
        return blocks
    timed = (blocks.last_step == NO_STEP) | by_time
    place = np.where(timed, blocks.last_time, blocks.last_step)
    sorted_names = np.argsort(np.argsort(np.array(blocks.names, dtype=object)))
    order = np.lexsort((place, blocks.attempt, sorted_names[blocks.name]))
    own, place = blocks.select(order), place[order]
    every = replace(own, rank=np.zeros(len(order), np.int32))
    starts, lengths = series_bounds(every)
    first = np.repeat(place[starts], lengths)
    width = np.repeat(np.maximum((place[starts + lengths - 1] - place[starts]) / points, 1.0), lengths)
    cell = ((place - first) / width).astype(np.int64)
    change = np.concatenate(([True], cell[1:] != cell[:-1]))
    change[starts] = True
    joined = reduced(every, np.flatnonzero(change))
    if not worst:
        return joined
    curve = np.repeat(np.arange(len(starts)), lengths)
    cells = np.cumsum(change) - 1
    far = _farthest(own, curve, joined.mean[cells])
    if not len(far):
        return joined
    alone = replace(own.select(far), rank=own.rank[far] + 1)
    return ordered(Blocks.concat([joined, reduced(alone, np.flatnonzero(np.diff(cells[far], prepend=-1)))]))


def _farthest(own: Blocks, curve: NDArray[np.int64], usual: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the rows of the rank of each curve that is farthest from the mean, if it is notable.

    `curve` and `usual` are, for each row, its curve and the mean of all ranks at its place.
    """
    away = np.abs(own.mean - usual)
    known = np.flatnonzero(np.isfinite(away) & (own.rank >= 0))
    if not len(known):
        return known
    ranks, place = np.unique(own.rank[known], return_inverse=True)
    which = curve[known] * len(ranks) + place.reshape(-1)  # its shape differs between versions of NumPy
    table = int(curve[known[-1]]) + 1, len(ranks)
    count = np.bincount(which, minlength=table[0] * table[1]).reshape(table)
    total = np.bincount(which, away[known], minlength=table[0] * table[1]).reshape(table)
    distance = np.divide(total, count, out=np.full(table, -1.0), where=count > 0)
    best = distance.argmax(axis=1)
    chosen = np.zeros(table, bool)
    for number in np.flatnonzero(np.count_nonzero(count, axis=1) > 1).tolist():
        level = usual[known][curve[known] == number]
        height = max(float(np.ptp(level)), float(np.abs(level).max()))
        chosen[number, best[number]] = distance[number, best[number]] > NOTABLE * height
    notable: NDArray[np.int64] = known[chosen.reshape(-1)[which]]
    return notable
