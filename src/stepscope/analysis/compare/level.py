"""The level of a quantity in each run: one number with its error, out of thousands of steps.

Three ways, by kind of quantity. *Flows* (step times, phases, throughput) and *curves* (loss) are compared at equal
steps: what all runs do at a step, such as a larger batch or a longer window by schedule, is taken out before anything
is called noise. *Peaks* (memory) are the highest value. A curve at an equal *time* is read off from its last points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.compare.recording import Curve, common_steps
from stepscope.analysis.series.autocorrelation import Mean, mean_error
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.core.arrays import Floats, Integers

    Curves = Sequence[Sequence[Curve]]

FEWEST = 8
"""Steps that runs must have in common, after their beginning, to compare their speed."""
WARM_STEPS, WARM_SHARE = 10, 0.05
"""Steps at the beginning that are not judged (compilation, caches, allocators): the more of both, a third at most."""
STRETCHES, STRETCH = 64, 8
"""Spans that the steps are cut into at most, and steps of one at least."""
PROFILE = 16
"""Spans by which runs of one group are held side by side."""
QUIET_SHARE = 0.25
"""Of a span, the fastest steps, which a busy machine disturbs least."""
TRIMMED = 0.2
"""Share of the spans, at each end, in which a run may be disturbed from beginning to end."""
QUIET_GAIN = 1.5
"""How many times better the quiet steps must be known before they stand for all of them. On 8 H100
(modded-nanogpt-runs) they are known worse, 0.04 to 1.1 times; on two busy cores mostly 2 to 20 times better."""
FLOOR_SHARE, FLOOR_LEAST = 0.01, 3
"""Of all steps, the very fastest, and at least so many: what a step takes while nothing disturbs it. Of equal torch
loops one after the other, on two cores with 16 programs waiting for them, they lie 2 % apart (standard deviation),
where the quiet quarter of each span lies 9 % apart and the mean 31 %."""
FLOOR_STEPS = 200
"""Steps below which a run has no such floor."""
FLOOR_PARTS, FLOOR_HELD = 8, 5
"""Parts of a run whose own fastest steps show how certain that is, and how many of them must reach the same floor:
the others may be disturbed from beginning to end. Of 600 pairs of equal torch loops one after the other, of 0.2 to 4 s
on two cores of a shared machine, 3.2 % lie apart by more than the interval of 95 %, which is ±1.5 to 7.5 %; by all
eight parts it were ±3 to 24 %. A program whose steps get longer by schedule reaches another floor in each part."""
WINDOW_SHARE = 0.05
"""Part of a curve's points that its value is a mean of; an evaluation's few points are taken one by one."""
WINDOW_LEAST, WINDOW_MOST = 12, 2000
"""Points in that part, at least and at most; a curve of less than four times the least is read point by point."""
JITTER_POINTS, JITTER_LEAST = 6, 4
"""Points up to a single one, at most and at least, that show how far it lies from its neighbors by chance."""


@dataclass(frozen=True)
class Level:
    """The value of a quantity in one run."""

    value: float
    error: float = 0.0
    """Standard error within the run; 0 if it has only one value."""
    points: int = 1
    """Values that stand behind it."""


@dataclass(frozen=True)
class Levels:
    """A quantity in each run of each group; without groups it cannot be compared."""

    groups: tuple[tuple[Level, ...], ...]
    text: str
    """Its definition in a few words, or why it cannot be compared."""
    whole: bool = False
    """Whether the errors include the distance between equal runs, not only the error within each run."""


@dataclass(frozen=True)
class Reduction:
    """How the steps of a span become one value."""

    text: str
    reduce: Callable[[Floats], Floats]
    """Takes runs by steps, returns one value a run."""
    trimmed: float = 0.0
    """Share of the spans, at each end, that is not believed."""

    falls: bool = False
    """Whether a disturbed step has a lower value, as a rate."""


def _lowest(table: Floats, share: float = QUIET_SHARE, least: int = 1) -> Floats:
    most = min(table.shape[1], max(least, int(share * table.shape[1])))
    return np.asarray(np.partition(table, most - 1, axis=1)[:, :most].mean(axis=1))


MEAN = Reduction("mean", lambda table: np.asarray(table.mean(axis=1)))
QUIET = Reduction(
    f"mean of the fastest {QUIET_SHARE * 100:.0f} % in each interval of steps, as the machine disturbed the others",
    _lowest,
    TRIMMED,
)
QUIET_RATE = Reduction(QUIET.text, lambda table: -_lowest(-table), TRIMMED, falls=True)


def flow(groups: Curves, quiet: Reduction | None = QUIET, over: float = 1.0, parts: int = 0) -> Levels:
    """Return the value a step of each run.

    Args:
        groups: the runs' curves.
        quiet: how to use only the quiet steps if the machine disturbed the others; None: use all steps.
        over: ratio of the distance between equal runs to the error from their steps; the floor estimates its own.
        parts: parts that a run has if the steps of the curves are parts of it; 0 if they are steps.
    """
    curves = _flat(groups)
    steps = _judged(common_steps(curves))
    if len(steps) < FEWEST:
        return Levels((), f"the runs have {len(steps)} steps in common after their beginning; {FEWEST} are needed")
    table = _table(curves, steps)
    which = _which(steps, parts)
    found = [(_aligned(table, MEAN), f"{MEAN.text} of {which}", False)]
    if quiet is not None and len(steps) >= FEWEST * STRETCH:
        found.append((_aligned(table, quiet), f"{quiet.text}; {which}", False))
        if len(steps) >= FLOOR_STEPS:
            text = f"mean of the fastest {FLOOR_SHARE * 100:.0f} %, as the machine disturbed the others; {which}"
            found.append((_floors(table, falls=quiet.falls), text, True))
    doubts = [_doubt(levels) * (1.0 if whole else over) for levels, _, whole in found]
    best = int(np.argmin(doubts)) if min(doubts) * QUIET_GAIN < doubts[0] else 0
    levels, text, whole = found[best]
    return Levels(_regroup(levels, groups), text, whole)


def _floors(table: Floats, *, falls: bool) -> list[Level]:
    """Return the fastest steps of each run; the error is how far its least disturbed parts lie apart in theirs."""
    sign = -1.0 if falls else 1.0
    value = sign * _lowest(sign * table, FLOOR_SHARE, FLOOR_LEAST)
    parts = np.array_split(np.arange(table.shape[1]), FLOOR_PARTS)
    floors = np.stack([_lowest(sign * table[:, part], 2 * FLOOR_SHARE, FLOOR_LEAST) for part in parts], axis=1)
    error = np.sort(floors, axis=1)[:, :FLOOR_HELD].std(axis=1, ddof=1)
    return [Level(float(one), float(own), table.shape[1]) for one, own in zip(value, error, strict=True)]


def profiles(curves: Sequence[Curve]) -> Floats | None:
    """Return how runs differ along their way: runs by spans, relative to what all do; None if they are too short.

    Args:
        curves: a metric of each run.
    """
    steps = _judged(common_steps(curves))
    if len(curves) < 2 or len(steps) < PROFILE * STRETCH:
        return None
    table = _table(curves, steps)
    parts = np.array_split(np.arange(len(steps)), PROFILE)
    reduced = np.stack([table[:, part].mean(axis=1) for part in parts], axis=1)
    middle = np.median(reduced, axis=0)
    return np.asarray(reduced / middle - 1.0) if (middle > 0).all() else None


def at_step(groups: Curves, step: int | None = None, parts: int = 0) -> Levels:
    """Return the value of curves at one step, or at the last that all have: the mean of the points around it.

    Args:
        groups: the runs' curves.
        step: the step; None: the last that all have.
        parts: as in `flow`.
    """
    curves = _flat(groups)
    steps = common_steps(curves)
    if not len(steps):
        return Levels((), "the runs have no step in common")
    target = int(steps[-1]) if step is None else step
    if target > steps[-1] + _spacing(steps) or target < steps[0] - _spacing(steps):
        wanted = format_share(target / parts) if parts else str(target)
        return Levels((), f"the runs have {_which(steps, parts)} in common, not {wanted}")
    size = _window(int(np.searchsorted(steps, target, side="right")))
    nearest = np.sort(np.argsort(np.abs(steps - target), kind="stable")[:size])
    chosen = steps[nearest]
    if size > 1:
        return Levels(_regroup(_aligned(_table(curves, chosen), MEAN), groups), f"mean of {_which(chosen, parts)}")
    values, errors = _table(curves, chosen)[:, 0], _jitter(groups, steps[: nearest[0] + 1])
    levels = [Level(float(value), error) for value, error in zip(values, errors, strict=True)]
    return Levels(_regroup(levels, groups), _which(chosen, parts))


def _which(steps: Integers, parts: int) -> str:
    """Return steps, or shares of a run, in words."""
    if parts:
        shares = [format_share(step / parts) for step in (steps[0], steps[-1])]
        return " to ".join(dict.fromkeys(shares)) + " of each run"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _jitter(groups: Curves, steps: Integers) -> list[float]:
    """Return how far single points of each run lie from their neighbours by chance: what all runs do is none.

    Args:
        groups: the runs' curves; repeats tell their noise themselves.
        steps: those that all have, up to the one that is judged.
    """
    curves, steps = _flat(groups), steps[-JITTER_POINTS:]
    if len(curves) < 2 or len(steps) < JITTER_LEAST or any(len(group) > 1 for group in groups):
        return [0.0] * len(curves)
    table = _table(curves, steps)
    apart = table - np.median(table, axis=0)
    # Differences of neighbours: runs that drift apart lie apart, but not by chance.
    change = np.diff(apart, axis=1)
    return [float(each) for each in np.sqrt(np.mean(change**2, axis=1) / 2 * len(curves) / (len(curves) - 1))]


def at_time(groups: Curves, seconds: float | None = None) -> Levels:
    """Return the value of curves at one time since the start, or at the last that all reach, in seconds."""
    curves = _flat(groups)
    ends = [float(np.nanmax(curve.elapsed)) if np.isfinite(curve.elapsed).any() else math.nan for curve in curves]
    if not curves or any(math.isnan(end) for end in ends):
        return Levels((), "not every run tells its time")
    target = min(ends) if seconds is None else seconds
    if target > min(ends) * (1 + 1e-9):
        return Levels((), f"a run ends after {min(ends):.6g} s, before {target:.6g} s")
    found = [_before(curve, target) for curve in curves]
    if any(level is None for level in found):
        return Levels((), f"not every run has a value by {target:.6g} s")
    steps = common_steps(curves)
    passed = [curve.elapsed[np.searchsorted(curve.step, steps)] <= target for curve in curves]
    errors = _jitter(groups, steps[np.all(passed, axis=0)])
    levels = [
        replace(level, error=error) if level.points == 1 else level
        for level, error in zip(found, errors, strict=True)
        if level is not None
    ]
    return Levels(_regroup(levels, groups), f"after {target:.6g} s")


def peak(groups: Curves) -> Levels:
    """Return the highest value of each run."""
    if any(not len(curve) for curve in _flat(groups)):
        return Levels((), "a run has no finite value")
    return Levels(
        tuple(tuple(Level(float(curve.value.max()), 0.0, len(curve)) for curve in group) for group in groups), "highest"
    )


def _judged(steps: Integers) -> Integers:
    """Return the steps without those at the beginning."""
    return steps[min(len(steps) // 3, max(WARM_STEPS, int(WARM_SHARE * len(steps)))) :]


def _flat(groups: Curves) -> list[Curve]:
    return [curve for group in groups for curve in group]


def _regroup(levels: Sequence[Level], groups: Curves) -> tuple[tuple[Level, ...], ...]:
    rest = iter(levels)
    return tuple(tuple(next(rest) for _ in group) for group in groups)


def _table(curves: Sequence[Curve], steps: Integers) -> Floats:
    """Return runs by steps."""
    return np.stack([curve.value[np.searchsorted(curve.step, steps)] for curve in curves])


def _aligned(table: Floats, view: Reduction) -> list[Level]:
    """Return each run's level over common steps; its error is of what it does otherwise than the runs together.

    A program that is slower by a share is so by more where steps are long by schedule, and one that does something more
    in every step is not: the error is of that way in which the runs lie apart most evenly.
    """
    steps = table.shape[1]
    count = min(STRETCHES, max(1, steps // STRETCH))
    parts = np.array_split(np.arange(steps), count) if count >= FEWEST else np.arange(steps)[:, None]
    reduced = np.stack([view.reduce(table[:, part]) for part in parts], axis=1)
    together = np.median(reduced, axis=0)
    apart = reduced - together
    middle = float(together.mean())
    found = _levels(apart, middle, len(table), steps, view.trimmed)
    if (together > 0).all():
        shares = _levels(apart / together * middle, middle, len(table), steps, view.trimmed)
        if _doubt(shares) < _doubt(found):
            found = [Level(one.value, other.error, one.points) for one, other in zip(found, shares, strict=True)]
    return found


def _levels(apart: Floats, middle: float, runs: int, steps: int, trimmed: float) -> list[Level]:
    """Return the level of each run from how far it lies from the middle in each span."""
    shrunk = math.sqrt(runs / max(1, runs - 1))  # what all do has taken its part of the noise
    found = []
    for row in apart:
        mean = trimmed_mean(row, trimmed) if len(row) > 1 else Mean(float(row[0]), 0.0, 1.0, 1)
        found.append(Level(middle + mean.value, mean.error * shrunk, steps))
    return found


def trimmed_mean(values: Floats, share: float) -> Mean:
    """Return the mean without a share of the lowest and of the highest values, and its error (Tukey and McLaughlin)."""
    out = int(share * len(values))
    if not out:
        return mean_error(values)
    ordered = np.sort(values)
    kept = ordered[out : len(values) - out]
    held = mean_error(np.clip(values, kept[0], kept[-1]))
    return Mean(float(kept.mean()), held.error / (1 - 2 * out / len(values)), held.effective, len(values))


def _doubt(levels: Sequence[Level]) -> float:
    """Return how badly levels are known, as a ratio: the median over the runs."""
    return float(np.median([level.error / abs(level.value) if level.value else math.inf for level in levels]))


def _spacing(steps: Integers) -> float:
    return float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0


def _window(points: int) -> int:
    """Return how many points make a value, out of so many up to it."""
    return 1 if points < 4 * WINDOW_LEAST else min(WINDOW_MOST, max(WINDOW_LEAST, int(WINDOW_SHARE * points)))


def _before(curve: Curve, seconds: float) -> Level | None:
    """Return the mean of the last points up to a time, of few points what lies between two; None without any."""
    reached = np.flatnonzero(curve.elapsed <= seconds * (1 + 1e-9))
    if not len(reached):
        return None
    size = _window(len(reached))
    if size == 1:  # between two evaluations a run is on its way from one to the next
        known = np.isfinite(curve.elapsed)
        return Level(float(np.interp(seconds, curve.elapsed[known], curve.value[known])))
    value = curve.value[reached[-size:]]
    return Level(float(value.mean()), mean_error(_straightened(value)).error, len(value))


def _straightened(value: Floats) -> Floats:
    """Return values without their straight trend."""
    place = np.arange(len(value)) - (len(value) - 1) / 2
    return np.asarray(value - place * (float(np.dot(place, value)) / float(np.dot(place, place))))
