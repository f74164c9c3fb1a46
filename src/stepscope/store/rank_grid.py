"""One metric as a grid of ranks and buckets of steps, read from the pyramid: the content of a heat map of ranks.

Each cell has the mean and the extremes of its points, so no spike is lost. Metrics without steps, such as samples of a
machine, have buckets of time instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.store.curves import Ask, select
from stepscope.store.pyramid import Blocks, build

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray

    from stepscope.store.block_cache import BlockCache
    from stepscope.store.snapshot import Snapshot


@dataclass(frozen=True)
class RankGrid:
    """A metric by rank (rows) and bucket (columns). A cell without finite points is NaN."""

    name: str
    attempt: int
    ranks: NDArray[np.int32]
    """Rank of each row, ascending; a negative number is the watcher of a node."""
    edges: NDArray[np.int64]
    """First step of each bucket, and the step after the last one; or times in microseconds since 1970 UTC."""
    by_time: bool
    """Whether the buckets are of time, because the metric has no steps."""
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    count: NDArray[np.int64]
    """Points of each cell, including those that are not finite."""


def rank_grid(
    snapshot: Snapshot, connection: duckdb.DuckDBPyConnection, ask: Ask, cache: BlockCache | None = None
) -> tuple[RankGrid, list[str]]:
    """Return the grid of the only metric asked for, in its last attempt unless one is asked for, and problems.

    `ask.points` is the maximum number of buckets; there are fewer where the blocks that are read are longer.
    """
    (name,) = ask.names
    points, blocks, problems = select(snapshot, connection, ask, cache, per_curve=True)
    blocks = Blocks.concat([part for part in (build(points, 1), blocks) if len(part)])
    attempt = int(blocks.attempt.max()) if len(blocks) else 0
    return _gridded(name, attempt, blocks.select(blocks.attempt == attempt), ask.points), problems


def _gridded(name: str, attempt: int, blocks: Blocks, buckets: int) -> RankGrid:
    by_time = bool(len(blocks)) and bool((blocks.high_step == NO_STEP).all())
    if not by_time:
        blocks = blocks.select(blocks.low_step != NO_STEP)
    first, last = (blocks.low_time, blocks.high_time) if by_time else (blocks.low_step, blocks.high_step)
    ranks, row = np.unique(blocks.rank, return_inverse=True)
    edges = _edges(first, last, blocks.count, buckets)
    shape = (len(ranks), len(edges) - 1)
    column = np.clip(np.searchsorted(edges, first + (last - first) // 2, "right") - 1, 0, max(0, shape[1] - 1))
    cell, size = row * shape[1] + column, shape[0] * shape[1]
    finite = blocks.count - blocks.nonfinite
    weight = np.bincount(cell, weights=finite, minlength=size)
    total = np.bincount(cell, weights=np.where(finite > 0, blocks.mean * finite, 0.0), minlength=size)
    low, high = np.full(size, np.nan), np.full(size, np.nan)
    np.fmin.at(low, cell, blocks.min)
    np.fmax.at(high, cell, blocks.max)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(weight > 0, total / weight, np.nan)
    count = np.bincount(cell, weights=blocks.count, minlength=size).astype(np.int64)
    parts = {"mean": mean, "low": low, "high": high, "count": count}
    return RankGrid(name, attempt, ranks.astype(np.int32), edges, by_time, **_shaped(parts, shape))


def _shaped(parts: dict[str, NDArray[Any]], shape: tuple[int, int]) -> dict[str, NDArray[Any]]:
    return {key: part.reshape(shape) for key, part in parts.items()}


def _edges(
    first: NDArray[np.int64], last: NDArray[np.int64], count: NDArray[np.int64], buckets: int
) -> NDArray[np.int64]:
    """Return the edges of at most so many equal buckets, none shorter than the blocks of most points: no holes."""
    if not len(first):
        return np.zeros(1, np.int64)
    begin, end = int(first.min()), int(last.max()) + 1
    usual = float(np.average(last - first + 1, weights=count))
    number = max(1, min(buckets, int((end - begin) / usual)))
    return np.linspace(begin, end, number + 1).astype(np.int64)
