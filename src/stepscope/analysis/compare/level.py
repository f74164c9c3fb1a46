"""The level of a quantity in each run: one number with its error, out of thousands of steps.

There are three ways, by kind of quantity. *Flows* (step times, phases, throughput) and *curves* (loss) are compared at
equal steps: what all runs do at a step, such as a larger batch by schedule, is removed before anything counts as noise.
*Peaks* (memory) are the highest value. A curve at an equal *time* is read from its last points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.compare.recording import Curve, common_steps
from stepscope.analysis.series.autocorrelation import mean_error
from stepscope.analysis.series.robust import detrended
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.core.arrays import Floats, Integers

    Curves = Sequence[Sequence[Curve]]

FEWEST = 8
"""Minimum steps after warm-up that runs must have in common to compare their speed."""
WARM_STEPS, WARM_SHARE = 10, 0.05
"""Steps at the beginning that are not judged (compilation, caches, allocators): the larger of both, at most a third."""
STRETCHES, STRETCH = 64, 8
"""Maximum number of spans that the steps are cut into, and minimum steps per span."""
PROFILE = 16
"""Number of spans by which the runs of one group are compared."""
QUIET_SHARE = 0.25
"""Share of the fastest steps in a span, which a busy machine disturbs least."""
TRIMMED = 0.2
"""Share of the spans, at each end, in which a run may be disturbed throughout."""
QUIET_GAIN = 1.5
"""The quiet steps represent all if their error is this many times smaller. On 8 H100 (modded-nanogpt-runs) it is larger
(0.04 to 1.1 times as good); on two busy cores mostly 2 to 20 times smaller."""
FLOOR_SHARE, FLOOR_LEAST, FLOOR_STEPS = 0.01, 3, 200
"""Share of the very fastest steps, at least so many, of a run with at least so many steps: the duration of a step that
nothing disturbs. For equal torch loops, one after the other, on two cores with 16 programs waiting for them, it
deviates by 2 %, the quiet quarter of each span by 9 % and the mean by 31 %."""
FLOOR_PARTS, FLOOR_HELD = 8, 5
"""Parts of a run whose own fastest steps show the error of the floor, and how many of them must reach it: the others
may be disturbed throughout. Of 600 pairs of equal torch loops of 0.2 to 4 s, one after the other, on two shared cores,
3.2 % differ by more than the 95 % interval, which is ±1.5 to 7.5 %; with all eight parts it would be ±3 to
24 %. A program whose steps get longer by schedule reaches another floor in each part."""
WINDOW_SHARE = 0.05
"""Share of a curve's points whose mean is its value; the few points of an evaluation are taken one by one."""
WINDOW_LEAST, WINDOW_MOST = 12, 2000
"""Minimum and maximum of these points; a curve with less than four times the minimum is read point by point."""
JITTER_POINTS, JITTER_LEAST = 6, 4
"""Maximum and minimum points before a single one that show how far it lies from its neighbours by chance."""


@dataclass(frozen=True)
class Level:
    """The value of a quantity in one run."""

    value: float
    error: float = 0.0
    """Standard error within the run; 0 if it has only one value."""
    points: int = 1
    """Values behind it."""


@dataclass(frozen=True)
class Levels:
    """A quantity in each run of each group; without groups it cannot be compared."""

    groups: tuple[tuple[Level, ...], ...]
    text: str
    """Its definition in a few words, or why it cannot be compared."""
    whole: bool = False
    """Whether the errors include the difference between equal runs, not only the error within each run."""


@dataclass(frozen=True)
class Reduction:
    """How the steps of a span become one value."""

    text: str
    reduce: Callable[[Floats], Floats]
    """Takes a table of runs by steps, returns one value per run."""
    trimmed: float = 0.0
    """Share of the spans, at each end, that is ignored."""
    falls: bool = False
    """Whether disturbed steps have lower values, as rates do."""


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


def flow(groups: Curves, quiet: Reduction | None, over: float, parts: int) -> Levels:
    """Return the value per step of each run.

    Args:
        groups: the runs' curves.
        quiet: how to use only the quiet steps if the machine disturbed the others; None: use all steps.
        over: ratio of the difference between equal runs to the error from their steps; the floor estimates its own.
        parts: number of parts of a run, if the curves go by parts; 0 if they go by steps.
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
    """Return the fastest steps of each run; the error is the spread of those of its least disturbed parts."""
    sign = -1.0 if falls else 1.0
    value = sign * _lowest(sign * table, FLOOR_SHARE, FLOOR_LEAST)
    parts = np.array_split(sign * table, FLOOR_PARTS, axis=1)
    floors = np.stack([_lowest(part, 2 * FLOOR_SHARE, FLOOR_LEAST) for part in parts], axis=1)
    error = np.sort(floors, axis=1)[:, :FLOOR_HELD].std(axis=1, ddof=1)
    return [Level(float(one), float(own), table.shape[1]) for one, own in zip(value, error, strict=True)]


def profiles(curves: Sequence[Curve]) -> Floats | None:
    """Return how each run differs from the median run: a table of runs by spans; None if they are too short."""
    steps = _judged(common_steps(curves))
    if len(curves) < 2 or len(steps) < PROFILE * STRETCH:
        return None
    parts = np.array_split(_table(curves, steps), PROFILE, axis=1)
    reduced = np.stack([part.mean(axis=1) for part in parts], axis=1)
    middle = np.median(reduced, axis=0)
    return np.asarray(reduced / middle - 1.0) if (middle > 0).all() else None


def at_step(groups: Curves, step: int | None = None, parts: int = 0) -> Levels:
    """Return the value of curves at a step, or at the last common step (None): the mean of the points around it."""
    curves = _flat(groups)
    steps = common_steps(curves)
    if not len(steps):
        return Levels((), "the runs have no step in common")
    target = int(steps[-1]) if step is None else step
    spacing = float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0
    if target > steps[-1] + spacing or target < steps[0] - spacing:
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
    """Return how far single points of each run lie from their neighbours by chance, without what all runs do.

    `steps` are the common steps up to the one that is judged. Groups with repeats show their noise themselves.
    """
    curves, steps = _flat(groups), steps[-JITTER_POINTS:]
    if len(curves) < 2 or len(steps) < JITTER_LEAST or any(len(group) > 1 for group in groups):
        return [0.0] * len(curves)
    table = _table(curves, steps)
    apart = table - np.median(table, axis=0)
    change = np.diff(apart, axis=1)  # of neighbours: runs that drift apart do not differ by chance
    return [float(each) for each in np.sqrt(np.mean(change**2, axis=1) / 2 * len(curves) / (len(curves) - 1))]


def at_time(groups: Curves, seconds: float | None = None) -> Levels:
    """Return the value of curves at a time since the start, or at the last that all reach, in seconds."""
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
    pairs = zip(found, errors, strict=True)
    levels = [replace(one, error=error) if one.points == 1 else one for one, error in pairs if one is not None]
    return Levels(_regroup(levels, groups), f"after {target:.6g} s")


def peak(groups: Curves) -> Levels:
    """Return the highest value of each run."""
    curves = _flat(groups)
    if any(not len(curve) for curve in curves):
        return Levels((), "a run has no finite value")
    levels = [Level(float(curve.value.max()), 0.0, len(curve)) for curve in curves]
    return Levels(_regroup(levels, groups), "highest")


def _judged(steps: Integers) -> Integers:
    """Return the steps without warm-up."""
    return steps[min(len(steps) // 3, max(WARM_STEPS, int(WARM_SHARE * len(steps)))) :]


def _flat(groups: Curves) -> list[Curve]:
    return [curve for group in groups for curve in group]


def _regroup(levels: Sequence[Level], groups: Curves) -> tuple[tuple[Level, ...], ...]:
    rest = iter(levels)
    return tuple(tuple(next(rest) for _ in group) for group in groups)


def _table(curves: Sequence[Curve], steps: Integers) -> Floats:
    """Return the values as a table of runs by steps."""
    return np.stack([curve.value[np.searchsorted(curve.step, steps)] for curve in curves])


def _aligned(table: Floats, view: Reduction) -> list[Level]:
    """Return each run's level over common steps; its error comes from the differences to the median run.

    If steps get longer by schedule, the extra time of a slower program may grow with them or stay constant: the error
    is that of the more even of both differences, relative or absolute.
    """
    steps = table.shape[1]
    count = min(STRETCHES, max(1, steps // STRETCH))
    parts = np.array_split(table, count if count >= FEWEST else steps, axis=1)
    reduced = np.stack([view.reduce(part) for part in parts], axis=1)
    together = np.median(reduced, axis=0)
    apart = reduced - together
    middle = float(together.mean())
    shrunk = math.sqrt(len(table) / max(1, len(table) - 1))  # subtracting the median removed a part of the noise

    def levels(differences: Floats) -> list[Level]:
        means = [_trimmed_mean(row, view.trimmed) for row in differences]
        return [Level(middle + value, error * shrunk, steps) for value, error in means]

    found = levels(apart)
    if (together > 0).all():
        shares = levels(apart / together * middle)
        if _doubt(shares) < _doubt(found):
            found = [Level(one.value, other.error, one.points) for one, other in zip(found, shares, strict=True)]
    return found


def _trimmed_mean(values: Floats, share: float) -> tuple[float, float]:
    """Return the mean without a share of the lowest and highest values, and its error (Tukey and McLaughlin)."""
    if len(values) == 1:
        return float(values[0]), 0.0
    out = int(share * len(values))
    kept = np.sort(values)[out : len(values) - out] if out else values
    clipped = mean_error(np.clip(values, kept[0], kept[-1]) if out else values)
    return float(kept.mean()) if out else clipped.value, clipped.error / (1 - 2 * out / len(values))


def _doubt(levels: Sequence[Level]) -> float:
    """Return the median relative error of some levels."""
    return float(np.median([level.error / abs(level.value) if level.value else math.inf for level in levels]))


def _window(points: int) -> int:
    """Return how many of these points make a value."""
    return 1 if points < 4 * WINDOW_LEAST else min(WINDOW_MOST, max(WINDOW_LEAST, int(WINDOW_SHARE * points)))


def _before(curve: Curve, seconds: float) -> Level | None:
    """Return the mean of the last points up to a time; of few points the interpolated value; None without any."""
    reached = np.flatnonzero(curve.elapsed <= seconds * (1 + 1e-9))
    if not len(reached):
        return None
    size = _window(len(reached))
    if size == 1:  # between two evaluations a run is on its way from one to the next
        known = np.isfinite(curve.elapsed)
        return Level(float(np.interp(seconds, curve.elapsed[known], curve.value[known])))
    value = curve.value[reached[-size:]]
    return Level(float(value.mean()), mean_error(detrended(value)).error, len(value))
