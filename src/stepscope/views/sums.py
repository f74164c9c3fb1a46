"""Exact sums of every series of a run, read at once from the coarsest blocks: quick for any number of steps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from stepscope.store.curves import Ask, curves
from stepscope.store.series import by_name, whole
from stepscope.views.buckets import Buckets, buckets_of, buckets_of_blocks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stepscope.store.reader import Past

Sums = dict[str, Buckets]
"""By metric: a bucket for each rank and attempt, over all its points."""


def sums_of(past: Past, names: Collection[str] | None = None) -> Sums:
    """Return the sums of some metrics, or of all; metrics that the run does not have are left out."""
    blocks = past.totals(names)
    every = buckets_of_blocks(blocks)
    starts: list[int] = np.flatnonzero(np.diff(blocks.name, prepend=-1)).tolist()
    bounds = pairwise([*starts, len(blocks)])
    return {blocks.names[blocks.name[first]]: every.select(slice(first, last)) for first, last in bounds}


def lines_of(past: Past, sums: Mapping[str, Buckets], names: Collection[str], points: int) -> dict[str, Buckets]:
    """Return the first rank of some metrics as about so many buckets per attempt, however many ranks there are."""
    first = {name: int(sums[name].rank.min()) for name in names if name in sums}
    if not first:
        return {}
    drawn = curves(past, Ask(tuple(first), points, tuple(sorted(set(first.values())))))
    found = {name: buckets_of_blocks(part) for name, part in by_name(drawn.blocks)}
    found |= {name: buckets_of(whole(name, part)) for name, part in by_name(drawn.points)}
    return {name: one.select(one.rank == first[name]) for name, one in found.items()}
