"""Exact sums of every series of a run, read at once from the coarsest blocks: quick for any number of steps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from stepscope.views.buckets import Buckets, buckets_of_blocks

if TYPE_CHECKING:
    from collections.abc import Collection

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
