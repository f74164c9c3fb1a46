"""Several metrics by rank and bucket of steps, on one grid, so that they can be subtracted from each other.

It reads single points where there are few, else the level of the pyramid with blocks enough. A block that reaches over
several buckets is divided among them in proportion to its steps; its extremes stay where they were recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.store.parquet import Selection
from stepscope.store.points import distinct
from stepscope.store.pyramid import LEVELS, Blocks, build
from stepscope.store.sealed import read_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import duckdb

    from stepscope.core.arrays import Floats, Integers
    from stepscope.store.block_cache import BlockCache
    from stepscope.store.snapshot import Snapshot

FEW_POINTS = 400_000
"""Points of one query that are read one by one."""
MANY_RANKS = 1024
"""Ranks that are assumed while their number is unknown."""
MANY_BLOCKS = 1_000_000
"""Blocks of 64 steps of one query; beyond it, blocks of 4096 are read."""


@dataclass(frozen=True)
class MatrixAsk:
    """What to read. None selects everything."""

    names: tuple[str, ...]
    attempt: int = 0
    steps: tuple[int, int] | None = None
    """First and last step, inclusive."""
    buckets: int = 160
    """Maximum number of buckets."""


@dataclass(frozen=True)
class RankCells:
    """One metric: a row for each rank, a column for each bucket; NaN where nothing finite was recorded."""

    mean: Floats
    low: Floats
    high: Floats
    count: Floats
    """Points; a block's points are divided among its buckets, so it may be a fraction."""


@dataclass(frozen=True)
class RankMatrix:
    """The answer: the cells of each metric."""

    ranks: Integers
    """Number of the rank of each row, ascending."""
    edges: Integers
    """First step of each bucket, and the step after the last bucket."""
    steps: tuple[int, int] = (0, -1)
    """First and last step that was recorded in the range; (0, -1) if there is none."""
    level: int = 1
    """Steps of the blocks that were read; 1: every step."""
    cells: dict[str, RankCells] = field(default_factory=dict)


class MatrixReader(Protocol):
    """The part of an open run that `rank_matrix` uses."""

    cache: BlockCache | None

    def read(self, how: Callable[[Snapshot, duckdb.DuckDBPyConnection], tuple[RankMatrix, list[str]]], /) -> RankMatrix:
        """Return what `how` reads from a snapshot, and keep the problems that it reports."""


def rank_matrix(past: MatrixReader, ask: MatrixAsk) -> RankMatrix:
    """Return metrics of a run by rank and bucket of steps."""
    return past.read(lambda snapshot, connection: read_matrix(snapshot, connection, ask, past.cache))


def read_matrix(
    snapshot: Snapshot, connection: duckdb.DuckDBPyConnection, ask: MatrixAsk, cache: BlockCache | None = None
) -> tuple[RankMatrix, list[str]]:
    """Return the cells that an ask selects, and what could not be read."""
    reading = _MatrixReading(snapshot, connection, ask, cache)
    return reading.read(), reading.problems


class _MatrixReading:
    """One query on one snapshot."""

    def __init__(
        self, snapshot: Snapshot, connection: duckdb.DuckDBPyConnection, ask: MatrixAsk, cache: BlockCache | None
    ) -> None:
        self._snapshot, self._connection, self._ask, self._cache = snapshot, connection, ask, cache
        known = snapshot.counts()
        self._names = [name for name in ask.names if name in known]
        self._selection = Selection(set(self._names), attempts=(ask.attempt,))
        self.problems: list[str] = []

    def read(self) -> RankMatrix:
        level = 1 if self._is_small() else self._level(self._count())
        blocks = _with_steps(self._points() if level == 1 else self._blocks(level))
        ranks = np.unique(blocks.rank).astype(np.int64)
        if not len(blocks):
            return RankMatrix(ranks, np.empty(0, np.int64))
        first, last = int(blocks.low_step.min()), int(blocks.high_step.max())
        if self._ask.steps is not None:
            first, last = max(first, self._ask.steps[0]), min(last, self._ask.steps[1])
        edges = _edges(first, last, self._ask.buckets, level)
        cells = {
            name: _cells(blocks.select(blocks.name == code), ranks, edges, (first, last))
            for code, name in enumerate(blocks.names)
            if name in self._names
        }
        return RankMatrix(ranks, edges, (first, last), level, cells)

    def _is_small(self) -> bool:
        """Return whether the range is so short that counting its points costs more than reading them."""
        span = self._ask.steps
        return span is not None and (span[1] - span[0] + 1) * len(self._names) <= FEW_POINTS // MANY_RANKS

    def _count(self) -> float:
        """Return about how many points the range holds."""
        if self._ask.steps is None:
            return float(sum(self._snapshot.counts()[name] for name in self._names))
        coarse = _with_steps(self._blocks(LEVELS[1]))
        return float((coarse.count * _share(coarse, *self._ask.steps)).sum())

    def _level(self, count: float) -> int:
        """Return the steps of the blocks to read; 1 for single points."""
        if count <= FEW_POINTS:
            return 1
        is_whole = self._ask.steps is None and self._ask.buckets == 1
        return LEVELS[1] if is_whole or count / LEVELS[0] > MANY_BLOCKS else LEVELS[0]

    def _points(self) -> Blocks:
        selection = replace(self._selection, step_range=self._ask.steps)
        points, problems = self._snapshot.points(selection, self._connection if self._snapshot.units else None)
        self.problems += problems
        return build(points, 1)

    def _blocks(self, level: int) -> Blocks:
        selection = replace(self._selection, level=level, step_range=self._ask.steps)
        # Only whole curves are kept: a part of every phase would drive them out.
        cache = self._cache if self._ask.steps is None else None
        units = self._snapshot.holding(self._names)
        blocks, problems = read_blocks(units, selection, connection=self._connection, cache=cache)
        self.problems += map(str, problems)
        tail = self._snapshot.tail_points(replace(selection, level=None))
        return Blocks.concat([blocks, build(distinct(tail), 1)]) if len(tail) else blocks


def _with_steps(blocks: Blocks) -> Blocks:
    """Return the blocks that have steps, and belong to a rank rather than to a machine."""
    keep = (blocks.high_step != NO_STEP) & (blocks.low_step != NO_STEP) & (blocks.rank >= 0)
    return blocks if keep.all() else blocks.select(keep)


def _share(blocks: Blocks, first: int, last: int) -> Floats:
    """Return the share of the steps of each block that lies in a range."""
    inside = np.minimum(blocks.high_step, last) - np.maximum(blocks.low_step, first) + 1
    return np.asarray(np.clip(inside / (blocks.high_step - blocks.low_step + 1.0), 0.0, 1.0))


def _edges(first: int, last: int, buckets: int, level: int) -> Integers:
    """Return the edges of at most so many buckets, of equal widths that are powers of two.

    The edges are multiples of the width, so the buckets of a growing run stay where they are until the width doubles.
    """
    width = 1
    while last // width - first // width + 1 > max(1, buckets) or (width < level and width <= (last - first) // 2):
        width *= 2
    return np.arange(first // width, last // width + 2, dtype=np.int64) * width


def _cells(blocks: Blocks, ranks: Collection[int], edges: Integers, steps: tuple[int, int]) -> RankCells:
    """Return the cells of one metric; only the parts of blocks inside `steps` count."""
    shape = len(ranks), len(edges) - 1
    row = np.searchsorted(np.asarray(ranks), blocks.rank) * shape[1]
    width, start = int(edges[1] - edges[0]), int(edges[0])
    low, high = np.maximum(blocks.low_step, steps[0]), np.minimum(blocks.high_step, steps[1])
    first, last = (low - start) // width, (high - start) // width
    count, total, points = np.zeros(shape).ravel(), np.zeros(shape).ravel(), blocks.count - blocks.nonfinite
    each = points / (blocks.high_step - blocks.low_step + 1.0)
    mean = np.nan_to_num(blocks.mean)
    for ahead in range(int((last - first).max(initial=0)) + 1):
        kept = np.flatnonzero(first + ahead <= last)
        at = first[kept] + ahead
        inside = np.minimum(high[kept] + 1, start + (at + 1) * width) - np.maximum(low[kept], start + at * width)
        weight, cell = each[kept] * inside, row[kept] + at
        count += np.bincount(cell, weight, len(count))
        total += np.bincount(cell, weight * mean[kept], len(count))
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(count > 0, total / count, np.nan)
    lows = _extremes(np.fmin, blocks.min, (blocks.min_step, row), (edges, len(count)))
    highs = _extremes(np.fmax, blocks.max, (blocks.max_step, row), (edges, len(count)))
    return RankCells(*(column.reshape(shape) for column in (means, lows, highs, count)))


def _extremes(how: np.ufunc, value: Floats, place: tuple[Integers, Integers], grid: tuple[Integers, int]) -> Floats:
    """Return the lowest or highest value of each cell, each at the step where it was recorded."""
    (step, row), (edges, size) = place, grid
    found = np.full(size, np.nan)
    at = (step - edges[0]) // (edges[1] - edges[0])
    kept = (at >= 0) & (at < len(edges) - 1) & np.isfinite(value)
    cells, values = row[kept] + at[kept], value[kept]
    how.at(found, cells, values)
    return found
