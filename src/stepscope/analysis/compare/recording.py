"""A run in the form for comparison: one curve per metric over steps and time, hardware and settings."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stepscope.core.ring import NO_STEP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats, Integers

MOSTLY = 0.8
"""Runs took place at the same time if they overlap for this share of the longest."""
FEWEST_TURNS = 3
"""Minimum runs of each program to count as taking turns."""
MEAN, SUM, MOST = "mean", "sum", "most"
"""How the values of several ranks for one step become one."""


class PointArrays(Protocol):
    """The points of one metric, of a run of ours or an imported one."""

    @property
    def step(self) -> Integers:
        """Step; `NO_STEP` for a point without a step."""

    @property
    def time(self) -> Floats:
        """Seconds; NaN if unknown."""

    @property
    def value(self) -> Floats:
        """Value in base units."""

    @property
    def rank(self) -> NDArray[np.int32]:
        """Rank that recorded it."""

    @property
    def attempt(self) -> NDArray[np.int32]:
        """Attempt of the run."""


@dataclass(frozen=True)
class Curve:
    """One metric of one run: one finite value per step, in order of the steps."""

    step: Integers
    elapsed: Floats
    """Seconds since the run began; NaN if unknown."""
    value: Floats
    left_out: int = 0
    """Values that are not finite."""

    def __len__(self) -> int:
        """Return the number of steps that have a value."""
        return len(self.value)


@dataclass(frozen=True)
class Recording:
    """One run to be compared."""

    label: str
    curves: dict[str, Curve]
    facts: dict[str, Any] = field(default_factory=dict)
    """Hardware, batch, build and settings, by short names, as plain values."""
    span: tuple[float, float] | None = None
    """When it began and ended, in seconds since 1970; None if unknown."""
    planned: int | None = None
    """Planned steps, from the settings or because the run finished; None if unknown."""


@dataclass(frozen=True)
class Group:
    """Runs of one program: repeats."""

    label: str
    runs: tuple[Recording, ...]

    def names(self) -> list[str]:
        """Return the metrics that every run of the group has, in order."""
        sets = [set(run.curves) for run in self.runs]
        return sorted(set.intersection(*sets)) if sets else []

    def curves(self, name: str) -> list[Curve]:
        """Return a metric of every run that has it."""
        return [run.curves[name] for run in self.runs if name in run.curves]


def together(runs: Sequence[Recording]) -> bool:
    """Return whether runs took place at the same time: all overlap for most of the longest one."""
    known = [run.span for run in runs if run.span is not None]
    if len(known) < max(2, len(runs)):
        return False
    shared = min(end for _, end in known) - max(begin for begin, _ in known)
    return shared > MOSTLY * max(end - begin for begin, end in known) > 0


def in_turn(first: Group, second: Group) -> list[tuple[int, int]]:
    """Return the indices of runs of two groups that followed each other, if they took turns (A B A B); else empty.

    There must be at least three of each; none may begin before the previous one ended; each two in a row are one of
    each.
    """
    runs = [(run.span, group, place) for group, one in enumerate((first, second)) for place, run in enumerate(one.runs)]
    known = sorted((span, group, place) for span, group, place in runs if span is not None)
    if len(known) < len(runs) or len(first.runs) != len(second.runs) or len(first.runs) < FEWEST_TURNS:
        return []
    if any(later[0][0] < earlier[0][1] for earlier, later in itertools.pairwise(known)):
        return []
    couples = [sorted(((group, place) for _, group, place in known[at : at + 2])) for at in range(0, len(known), 2)]
    if any([group for group, _ in couple] != [0, 1] for couple in couples):
        return []
    return [(couple[0][1], couple[1][1]) for couple in couples]


def curve_of(points: PointArrays, start: float = np.nan, how: str = MEAN) -> Curve:
    """Return the points of all ranks and attempts as a curve; without steps the order of the points replaces them.

    A step that was repeated counts as it was done last. `start` is when the run began, on the clock of the points;
    `how` joins the values of several ranks: mean, sum or most.
    """
    value, step = points.value, points.step
    if len(step) and (step == NO_STEP).all():
        step = np.arange(len(step))
    kept = np.isfinite(value) & (step != NO_STEP)
    order = np.lexsort((points.time[kept], points.rank[kept], points.attempt[kept], step[kept]))
    step, rank, attempt = step[kept][order], points.rank[kept][order], points.attempt[kept][order]
    time, value = points.time[kept][order], value[kept][order]
    if not len(step):
        return Curve(step, time, value, len(points.value))
    starts = np.flatnonzero(np.append(True, np.diff(step) != 0))
    newest = np.repeat(np.maximum.reduceat(attempt, starts), np.diff(np.append(starts, len(step))))
    ends = np.flatnonzero(np.append((np.diff(step) != 0) | (np.diff(rank) != 0) | (np.diff(attempt) != 0), True))
    ends = ends[(attempt == newest)[ends]]  # the last point of each rank in the last attempt of each step
    step, time, value = step[ends], time[ends], value[ends]
    starts = np.flatnonzero(np.append(True, np.diff(step) != 0))
    joined = np.maximum.reduceat(value, starts) if how == MOST else np.add.reduceat(value, starts)
    if how == MEAN:
        joined = joined / np.diff(np.append(starts, len(step)))
    elapsed = np.maximum.reduceat(time, starts) - start
    return Curve(step[starts], elapsed, joined, int((~np.isfinite(points.value)).sum()))


def common_steps(curves: Sequence[Curve]) -> Integers:
    """Return the steps that all curves have, in order."""
    found = curves[0].step if curves else np.empty(0, np.int64)
    for curve in curves[1:]:
        found = np.intersect1d(found, curve.step, assume_unique=True)
    return found
