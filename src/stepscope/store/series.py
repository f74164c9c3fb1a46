"""One metric over time, whole or downsampled so that every minimum, maximum and non-finite point stays visible."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from stepscope.store.points import Points, series_bounds
from stepscope.store.pyramid import Blocks, build, first_where, lowest_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_Columns = TypeVar("_Columns", Points, Blocks)
_BAD = np.array([0.0, np.nan, np.inf, -np.inf])
"""The value of each kind in `Blocks.bad_kind`."""


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one metric in the order they were recorded, by rank and attempt.

    A downsampled series holds up to four real points of each bucket: the lowest, the highest, the first that is not
    finite, and the last; `buckets` then has the statistics over all points of each.
    """

    name: str
    step: NDArray[np.int64]
    """Step; `NO_STEP` (the lowest int64) for a machine sample outside of any step."""
    time: NDArray[np.float64]
    """Seconds since 1970 UTC."""
    value: NDArray[np.float64]
    """Value; durations in seconds."""
    rank: NDArray[np.int32]
    attempt: NDArray[np.int32]
    buckets: Blocks | None = None

    def __len__(self) -> int:
        return len(self.value)


def whole(name: str, points: Points) -> Series:
    """Return every point."""
    return Series(name, points.step, points.time / 1e6, points.value, points.rank, points.attempt)


def at_most(name: str, points: Points, buckets: int) -> Series:
    """Return every point if they are few, else about `buckets` buckets."""
    return whole(name, points) if len(points) <= buckets else from_blocks(name, bucket_points(points, buckets))


def by_name(columns: _Columns) -> Iterator[tuple[str, _Columns]]:
    """Return the part of each existing name, from points or blocks that are grouped by name."""
    starts: list[int] = np.flatnonzero(np.diff(columns.name, prepend=-1)).tolist()
    for first, last in pairwise([*starts, len(columns)]):
        yield columns.names[columns.name[first]], columns.select(slice(first, last))


def from_blocks(name: str, blocks: Blocks) -> Series:
    """Return the real points that stand out in each block, and the blocks."""
    chosen = (
        ("min", blocks.min, np.isfinite(blocks.min)),
        ("max", blocks.max, np.isfinite(blocks.max)),
        ("bad", _BAD[blocks.bad_kind], blocks.bad_kind > 0),
        ("last", blocks.last, np.ones(len(blocks), bool)),
    )
    picks = []
    for which, values, there in chosen:
        at = np.flatnonzero(there)
        steps, times = getattr(blocks, f"{which}_step"), getattr(blocks, f"{which}_time")
        picks.append((at, blocks.rank[at], blocks.attempt[at], steps[at], times[at], values[at]))
    columns = [np.concatenate([pick[at] for pick in picks]) for at in range(6)]
    block, rank, attempt, step, time, value = columns
    order = np.lexsort((value, step, time, block, attempt, rank))
    bits = value.view(np.int64)
    same = np.ones(len(order), bool)
    for column in (block, step, time, bits):
        same[1:] &= column[order][1:] == column[order][:-1]
    same[:1] = False
    order = order[~same]
    seconds = time[order].astype(np.float64) / 1e6
    return Series(name, step[order], seconds, value[order], rank[order], attempt[order], blocks)


def bucket_points(points: Points, buckets: int) -> Blocks:
    """Return about `buckets` blocks over points of one name, never across two ranks or attempts."""
    return build(points, max(1, -(-len(points) // max(1, buckets))))


def merge(blocks: Blocks, buckets: int) -> Blocks:
    """Join neighboring blocks of one name until there are about `buckets`, never across two ranks or attempts."""
    every = -(-len(blocks) // max(1, buckets))
    if every <= 1:
        return blocks
    within = np.arange(len(blocks)) - np.repeat(*series_bounds(blocks))
    return reduced(blocks, np.flatnonzero(within % every == 0))


def reduced(blocks: Blocks, starts: NDArray[np.int64]) -> Blocks:
    """Return one block for the blocks from each start to before the next."""
    ends = np.concatenate((starts[1:], [len(blocks)])) - 1
    lowest = _where(blocks.min, starts, np.fmin)
    highest = _where(blocks.max, starts, np.fmax)
    bad = first_where(blocks.bad_kind > 0, starts)
    count = np.add.reduceat(blocks.count, starts)
    finite = blocks.count - blocks.nonfinite
    weight = np.add.reduceat(finite, starts)
    share = finite / np.maximum(np.repeat(weight, np.diff(starts, append=len(blocks))), 1)  # no sum overflows
    mean = np.add.reduceat(np.where(finite > 0, blocks.mean * share, 0.0), starts)
    picked = (
        (starts, ("name", "rank", "attempt", "first_seq", "first_step", "first_time")),
        (ends, ("last_seq", "last_step", "last_time", "last")),
        (lowest, ("min", "min_at", "min_step", "min_time")),
        (highest, ("max", "max_at", "max_step", "max_time")),
        (bad, ("bad_step", "bad_time", "bad_kind")),
    )
    return Blocks(
        blocks.names,
        **{column: getattr(blocks, column)[at] for at, columns in picked for column in columns},
        count=count,
        nonfinite=np.add.reduceat(blocks.nonfinite, starts),
        low_step=lowest_step(blocks.low_step, starts),
        high_step=np.maximum.reduceat(blocks.high_step, starts),
        low_time=np.minimum.reduceat(blocks.low_time, starts),
        high_time=np.maximum.reduceat(blocks.high_time, starts),
        mean=np.where(weight > 0, np.clip(mean, blocks.min[lowest], blocks.max[highest]), np.nan),
        in_ns=np.logical_and.reduceat(blocks.in_ns, starts),
    )


def _where(column: NDArray[np.float64], starts: NDArray[np.int64], how: np.ufunc) -> NDArray[np.int64]:
    """Return the position of the first entry of each group that holds its extreme; the first one if all are NaN."""
    extreme = np.repeat(how.reduceat(column, starts), np.diff(starts, append=len(column)))
    return first_where(column == extreme, starts)


def summarize(value: NDArray[np.float64]) -> dict[str, Any]:
    """Return count, mean, std (population), min, max, p50, p95, p99 over finite values, last, and the non-finite count.

    A value that cannot be computed is None, never 0.
    """
    finite = value[np.isfinite(value)]
    figures: dict[str, Any] = dict.fromkeys(("mean", "std", "min", "max", "p50", "p95", "p99"))
    if len(finite):
        p50, p95, p99 = np.percentile(finite, [50, 95, 99])
        computed = (finite.mean(), finite.std(), finite.min(), finite.max(), p50, p95, p99)
        figures = dict(zip(figures, map(float, computed), strict=True))
    last = float(value[-1]) if len(value) else None
    return {"count": len(value), **figures, "last": last, "nonfinite": len(value) - len(finite)}
