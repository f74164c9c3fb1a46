"""The pyramid: blocks of 64 and of 4096 consecutive points of a series, so that no chart has to read every point.

A block keeps its extremes and their positions, so a chart drawn from blocks shows real points. It also keeps how many
of its values are not finite and where the first of them is, so no zoom hides one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.store.points import NO_NS, Points, SeriesColumns, columns_of, series_bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from typing_extensions import Self

LEVELS = (64, 4096)
"""Points per block of each level."""

SHORT = 64
"""A series with fewer points in one unit has no blocks there: reading its points is cheaper."""

NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY = 1, 2, 3
"""Kinds of non-finite values, as in `Blocks.bad_kind`; 0 is none."""

_EXACT_SECONDS = 2**50 / 1e9
"""Below this, seconds times 1e9 round to the original nanoseconds."""


@dataclass(frozen=True, slots=True)
class Blocks(SeriesColumns):
    """Blocks of points. Steps may be NO_STEP, times are microseconds since 1970 UTC, durations are in seconds.

    Extremes and mean are over the finite values, and NaN if there are none.
    """

    count: NDArray[np.int64]
    """Points, including those that are not finite."""
    nonfinite: NDArray[np.int64]
    """Points that are NaN or infinite."""
    first_seq: NDArray[np.int64]
    last_seq: NDArray[np.int64]
    first_step: NDArray[np.int64]
    """Step of the first point; `low_step` is the lowest, in case steps go back (NO_STEP if no point has a step)."""
    last_step: NDArray[np.int64]
    low_step: NDArray[np.int64]
    high_step: NDArray[np.int64]
    first_time: NDArray[np.int64]
    last_time: NDArray[np.int64]
    low_time: NDArray[np.int64]
    high_time: NDArray[np.int64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    mean: NDArray[np.float64]
    last: NDArray[np.float64]
    """Value of the last point, finite or not."""
    min_at: NDArray[np.int64]
    """Index within the block of the first point that holds the minimum; 0 if none does."""
    max_at: NDArray[np.int64]
    min_step: NDArray[np.int64]
    max_step: NDArray[np.int64]
    min_time: NDArray[np.int64]
    max_time: NDArray[np.int64]
    bad_step: NDArray[np.int64]
    """Step of the first point that is not finite; that of the first point if all are finite."""
    bad_time: NDArray[np.int64]
    bad_kind: NDArray[np.int64]
    """0 if every value is finite, else NAN, POSITIVE_INFINITY or NEGATIVE_INFINITY for the first value that is not."""
    in_ns: NDArray[np.bool_]
    """Whether every point is an exact duration: `min * 1e9` is then an integer number of nanoseconds."""

    @classmethod
    def empty(cls) -> Self:
        """Return no blocks."""
        return cls([], **{column: getattr(build(Points.empty(), LEVELS[0]), column) for column in COLUMNS})


COLUMNS = columns_of(Blocks)
"""Names of the columns of `Blocks`."""


def ordered(blocks: Blocks) -> Blocks:
    """Return blocks ordered by name, rank, attempt and first seq; the sort is stable."""
    rank = np.argsort(np.argsort(np.array(blocks.names, dtype=object))) if blocks.names else np.empty(0, np.int64)
    keys = (blocks.first_seq, blocks.attempt, blocks.rank, rank[blocks.name])
    equal = np.ones(max(len(blocks) - 1, 0), bool)
    for key in reversed(keys):
        if np.any(equal & (key[1:] < key[:-1])):
            return blocks.select(np.lexsort(keys))
        equal &= key[1:] == key[:-1]
    return blocks


def short_series(points: Points) -> NDArray[np.bool_]:
    """Return which points belong to a series of fewer than SHORT points; points must be sorted."""
    _, lengths = series_bounds(points)
    return np.repeat(lengths < SHORT, lengths)


def build(points: Points, size: int) -> Blocks:
    """Return the blocks of `size` points of every series; points must be sorted.

    Each series starts a new block and may end with an incomplete one. Short series are included here.
    """
    starts = _block_starts(points, size)
    ends = np.append(starts[1:], len(points))[: len(starts)]
    count = ends - starts
    finite = np.isfinite(points.value)
    low_at, low = _extreme(points.value, finite, starts, np.minimum)
    high_at, high = _extreme(points.value, finite, starts, np.maximum)
    nonfinite = count - reduce_by(np.add, finite.astype(np.int64), starts)
    bad_at = first_where(~finite, starts)
    last = ends - 1
    picked: dict[str, NDArray[Any]] = {key: getattr(points, key)[starts] for key in ("name", "rank", "attempt")}
    for which, at in (("first", starts), ("last", last), ("min", low_at), ("max", high_at), ("bad", bad_at)):
        picked |= {f"{which}_step": points.step[at], f"{which}_time": points.time[at]}
    return Blocks(
        points.names,
        **picked,
        count=count,
        nonfinite=nonfinite,
        first_seq=points.seq[starts],
        last_seq=points.seq[last],
        low_step=lowest_step(points.step, starts),
        high_step=reduce_by(np.maximum, points.step, starts),  # NO_STEP is the lowest integer
        low_time=reduce_by(np.minimum, points.time, starts),
        high_time=reduce_by(np.maximum, points.time, starts),
        min=low,
        max=high,
        mean=_mean(points.value, finite, starts, count - nonfinite, (low, high)),
        last=points.value[last],
        min_at=low_at - starts,
        max_at=high_at - starts,
        bad_kind=_kind(points.value[bad_at]),
        in_ns=reduce_by(np.minimum, (points.ns != NO_NS).view(np.int8), starts) == 1,
    )


def packed(blocks: Blocks) -> dict[str, NDArray[Any]]:
    """Return the columns as they are stored: small differences from known values.

    Integers wrap around, and `unpacked` wraps them back, so every step and time survives.
    """
    out = {field: getattr(blocks, field) for field in COLUMNS}
    for axis in ("seq", "step", "time"):
        out[f"last_{axis}"] = out[f"last_{axis}"] - out[f"first_{axis}"]
    for axis in ("step", "time"):
        out[f"low_{axis}"] = getattr(blocks, f"first_{axis}") - out[f"low_{axis}"]
        out[f"high_{axis}"] = out[f"high_{axis}"] - getattr(blocks, f"last_{axis}")
        out[f"bad_{axis}"] = out[f"bad_{axis}"] - getattr(blocks, f"first_{axis}")
        for extreme in ("min", "max"):
            out[f"{extreme}_{axis}"] = out[f"{extreme}_{axis}"] - _expected(out, axis, extreme)
    # Nanoseconds have few digits where seconds use all 52 bits: 3 bytes instead of 7.
    whole = blocks.in_ns & (np.abs(blocks.max) < _EXACT_SECONDS) & (np.abs(blocks.min) < _EXACT_SECONDS)
    for field in ("min", "max", "last"):
        out[field] = np.where(whole, np.rint(np.where(whole, out[field], 0.0) * 1e9), out[field])
    out["in_ns"] = blocks.in_ns.view(np.int8) + whole.view(np.int8)
    return out


def unpacked(names: list[str], columns: Mapping[str, NDArray[Any]]) -> Blocks:
    """Return the blocks whose columns `packed` produced."""
    out = dict(columns)
    for axis in ("step", "time"):
        for extreme in ("min", "max"):
            out[f"{extreme}_{axis}"] = out[f"{extreme}_{axis}"] + _expected(out, axis, extreme)
    for axis in ("seq", "step", "time"):
        out[f"last_{axis}"] = out[f"last_{axis}"] + out[f"first_{axis}"]
    for axis in ("step", "time"):
        out[f"low_{axis}"] = out[f"first_{axis}"] - out[f"low_{axis}"]
        out[f"high_{axis}"] = out[f"high_{axis}"] + out[f"last_{axis}"]
        out[f"bad_{axis}"] = out[f"bad_{axis}"] + out[f"first_{axis}"]
    whole = out["in_ns"] == 2
    for field in ("min", "max", "last"):
        out[field] = np.where(whole, out[field] / 1e9, out[field])
    out["in_ns"] = out["in_ns"] > 0
    return Blocks(names, **out)


def _expected(stored: Mapping[str, NDArray[Any]], axis: str, extreme: str) -> NDArray[np.int64]:
    """Return where an extreme would be if its block's points were evenly spaced; `last` is still a difference."""
    span = np.maximum(stored["count"] - 1, 1)
    gaps = stored[f"last_{axis}"] // span
    rest = stored[f"last_{axis}"] - gaps * span
    at = stored[f"{extreme}_at"]
    return np.asarray(stored[f"first_{axis}"] + gaps * at + rest * at // span, dtype=np.int64)


def _block_starts(points: Points, size: int) -> NDArray[np.int64]:
    starts, lengths = series_bounds(points)
    blocks = -(-lengths // size)
    inside = np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    return np.asarray(np.repeat(starts, blocks) + inside * size, dtype=np.int64)


def reduce_by(how: np.ufunc, column: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Reduce a column from each start to before the next."""
    return np.asarray(how.reduceat(column, starts)) if len(starts) else column[:0]


def lowest_step(step: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lowest step from each start to before the next; NO_STEP if there is none."""
    with_step = step != NO_STEP
    if with_step.all():
        return reduce_by(np.minimum, step, starts)
    low = reduce_by(np.minimum, np.where(with_step, step, np.iinfo(np.int64).max), starts)
    return np.where(reduce_by(np.maximum, with_step, starts), low, NO_STEP)


def first_where(mask: NDArray[np.bool_], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first position of each group where the mask holds, or the group's start."""
    hits = np.flatnonzero(mask)
    if not len(hits) or not len(starts):
        return starts
    group = np.searchsorted(starts, hits, side="right") - 1
    first = np.concatenate(([True], group[1:] != group[:-1]))
    out: NDArray[np.int64] = starts.copy()
    out[group[first]] = hits[first]
    return out


def _extreme(
    value: NDArray[np.float64], finite: NDArray[np.bool_], starts: NDArray[np.int64], how: np.ufunc
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return position and value of each block's lowest or highest finite value; NaN if there is none."""
    neutral = np.inf if how is np.minimum else -np.inf
    known = value if finite.all() else np.where(finite, value, neutral)
    found = reduce_by(how, known, starts)
    lengths = np.diff(starts, append=len(value))
    at = first_where((known == np.repeat(found, lengths)) & finite, starts)
    # Read from the column, so that the stored one of 0.0 and -0.0, which are equal, is shown.
    return at, np.where(np.isfinite(found), value[at], np.nan)


def _mean(
    value: NDArray[np.float64],
    finite: NDArray[np.bool_],
    starts: NDArray[np.int64],
    count: NDArray[np.int64],
    bounds: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the mean of each block's finite values, within their bounds; NaN if there is none."""
    known = value if finite.all() else np.where(finite, value, 0.0)
    with np.errstate(all="ignore"):
        mean = reduce_by(np.add, known, starts) / count
        over = ~np.isfinite(mean) & (count > 0)
        if over.any():  # the sum overflowed: scale first
            each = np.repeat(count, np.diff(starts, append=len(value)))
            mean = np.where(over, reduce_by(np.add, known / np.maximum(each, 1), starts), mean)
        return np.where(count > 0, np.clip(mean, *bounds), np.nan)


def _kind(value: NDArray[np.float64]) -> NDArray[np.int64]:
    kinds = [np.isnan(value), np.isposinf(value), np.isneginf(value)]
    return np.select(kinds, [NAN, POSITIVE_INFINITY, NEGATIVE_INFINITY], 0).astype(np.int64)
