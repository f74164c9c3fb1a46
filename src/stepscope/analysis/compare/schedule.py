"""Do runs follow one schedule? Runs of different lengths are not comparable at an equal step.

A learning rate that falls over 1 000 steps is half-way down where one of 2 000 steps has hardly begun: there the
shorter run looks better, and is not. So runs of different lengths are compared at equal shares of their length; runs of
one schedule, of which one is unfinished, at the last common step. The planned length comes from the settings, from the
learning rate, or from a run that finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.compare.quantity import STEP, is_loss, is_score
from stepscope.analysis.compare.recording import Curve, common_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analysis.compare.recording import Group, Recording
    from stepscope.core.arrays import Floats


EQUAL, OTHER, UNKNOWN = "equal", "other", "unknown"
LEARNING_RATE = "learning_rate"
TOLERANCE = 0.02
"""Lengths and shares that differ by at most this ratio count as equal: the last steps are not always logged."""
RATE_TOLERANCE, RATE_SHARE, RATE_LEAST = 0.02, 0.95, 8
"""Learning rates follow one schedule if they differ by at most this share of their maximum at this share of their
common steps, of which there must be so many."""
RATE_PART = 0.8
"""The same for equal shares of their lengths: a warm-up often has a fixed number of steps."""
PARTS = 1_000_000
"""Steps of a curve that goes by share of the run."""
FEW = 48
"""A curve with fewer points is interpolated instead of averaged."""


@dataclass(frozen=True)
class Schedule:
    """How the lengths of some runs compare."""

    kind: str
    """equal: equal steps are comparable; other: only equal shares are; unknown: cannot be decided."""
    lengths: tuple[int, ...] = ()
    """Planned steps of each run, else those it did."""
    reached: tuple[float, ...] = ()
    """Share of it that each run did."""
    text: str = ""
    """The lengths, as in `1845 steps against 1490`."""
    planned: bool = False
    """Whether the planned steps of every run are known."""

    @property
    def finished(self) -> bool:
        """Whether every run reached its end."""
        return all(share >= 1 - TOLERANCE for share in self.reached)

    @property
    def complete(self) -> bool:
        """Whether every run is known to have done all its planned steps."""
        return self.finished and (self.planned or self.kind == OTHER)

    @property
    def share(self) -> float:
        """The share of their length that all runs did; 1 if they are finished."""
        return 1.0 if self.finished else min(self.reached)


def schedule_of(groups: Sequence[Group]) -> Schedule:
    """Return whether the runs of some groups follow one schedule."""
    runs = [run for group in groups for run in group.runs]
    known = [last for last in map(last_step, runs) if last]
    if len(known) < len(runs) or not known:
        return Schedule(EQUAL)
    plans = list(map(_plan, runs, known))
    lengths = tuple(plan or last for plan, last in zip(plans, known, strict=True))
    reached = tuple(min(1.0, last / length) for last, length in zip(known, lengths, strict=True))
    return Schedule(_kind(runs, plans, lengths), lengths, reached, _text(groups, lengths), all(plans))


def _kind(runs: Sequence[Recording], plans: Sequence[int | None], lengths: Sequence[int]) -> str:
    """Return how the lengths of runs compare; the learning rate decides if the lengths do not."""
    if max(lengths) - min(lengths) <= max(1, TOLERANCE * max(lengths)):
        return EQUAL
    rates = [run.curves[LEARNING_RATE] for run in runs if LEARNING_RATE in run.curves]
    known = len(rates) == len(runs)
    if known and _one_schedule(rates):
        return EQUAL
    return OTHER if all(plans) or (known and _one_schedule(by_share(rates, lengths), RATE_PART)) else UNKNOWN


def last_step(run: Recording) -> int | None:
    """Return the last step of a run; None if it has no steps."""
    names = [STEP] if STEP in run.curves else [name for name in run.curves if is_loss(name) or is_score(name)]
    return max((int(run.curves[name].step[-1]) for name in names if len(run.curves[name])), default=None)


def _plan(run: Recording, last: int) -> int | None:
    """Return how many steps a run was to do; None if unknown, or if it did more."""
    return run.planned if run.planned and last <= run.planned * (1 + TOLERANCE) else None


def _one_schedule(rates: Sequence[Curve], share: float = RATE_SHARE) -> bool:
    """Return whether learning rates have the same shape over that share of their common steps."""
    steps = common_steps(rates)
    if len(steps) < RATE_LEAST:
        return False
    table = np.stack([rate.value[np.searchsorted(rate.step, steps)] for rate in rates])
    highest = table.max(axis=1, keepdims=True)
    return bool((highest > 0).all()) and float(np.mean(np.ptp(table / highest, axis=0) <= RATE_TOLERANCE)) >= share


def _text(groups: Sequence[Group], lengths: Sequence[int]) -> str:
    rest = iter(lengths)
    of_groups = [sorted({next(rest) for _ in group.runs}) for group in groups]
    shown = [str(some[0]) if len(some) == 1 else f"{some[0]} to {some[-1]}" for some in of_groups if some]
    return f"{shown[0]} steps{''.join(f' against {each}' for each in shown[1:])}" if shown else ""


def by_share(curves: Sequence[Curve], lengths: Sequence[int]) -> list[Curve]:
    """Return curves by shares of the runs' lengths, in `PARTS`, with the same parts in each and without times."""
    if not curves or not all(len(curve) for curve in curves):
        return list(curves)
    shares = [curve.step / length for curve, length in zip(curves, lengths, strict=True)]
    begin, end = max(share[0] for share in shares), min(share[-1] for share in shares)
    if begin > end:
        return [Curve(curve.step[:0], curve.elapsed[:0], curve.value[:0]) for curve in curves]
    points = [
        (share[some], curve.value[some])
        for share, curve in zip(shares, curves, strict=True)
        for some in [(share >= begin) & (share <= end)]
    ]
    fewest = min((share for share, _ in points), key=len)
    if len(fewest) >= FEW:
        return _means(points, np.linspace(begin, end, len(fewest) + 1))
    grid = np.unique(np.append(fewest, (begin, end)))
    return _on_parts(grid, [np.interp(grid, share, curve.value) for share, curve in zip(shares, curves, strict=True)])


def _means(points: Sequence[tuple[Floats, Floats]], edges: Floats) -> list[Curve]:
    """Return the means of points between edges of shares, where all runs have points."""
    count = len(edges) - 1
    places = [np.clip(np.searchsorted(edges, share, side="right") - 1, 0, count - 1) for share, _ in points]
    numbers = [np.bincount(place, minlength=count) for place in places]
    sums = [np.bincount(place, value, minlength=count) for place, (_, value) in zip(places, points, strict=True)]
    full = np.all([number > 0 for number in numbers], axis=0)
    means = [total[full] / number[full] for total, number in zip(sums, numbers, strict=True)]
    return _on_parts(edges[1:][full], means)


def _on_parts(shares: Floats, values: Sequence[Floats]) -> list[Curve]:
    parts, kept = np.unique(np.round(shares * PARTS).astype(np.int64), return_index=True)
    return [Curve(parts, np.full(len(parts), np.nan), value[kept]) for value in values]
