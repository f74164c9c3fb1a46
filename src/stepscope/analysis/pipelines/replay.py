"""Steps of a pipelined training, replayed with other durations of their operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.pipelines.operations import GC, TALKS
from stepscope.analysis.pipelines.schedule import schedule_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.analysis.pipelines.operations import Grid
    from stepscope.analysis.pipelines.schedule import PipelineSchedule
    from stepscope.core.arrays import Floats, Mask


MOST_BYTES = 64 << 20
"""Memory of the variants that are replayed at a time."""
SKEW = 0.01
"""Seconds that a transfer may seem to end before its begin, as clocks differ; if more, its duration is unknown."""


@dataclass(frozen=True)
class Replay:
    """A training whose steps can be replayed."""

    grid: Grid
    schedule: PipelineSchedule
    seconds: Floats
    """Duration of every operation itself, by step and replica: transfers last from when both ends are there."""
    ideal: Floats
    """The duration that every operation of its kind would take: the mean, and of talking the median."""

    @classmethod
    def of(cls, grid: Grid, *, batched: bool = False) -> Replay:
        """Prepare the replay of a grid; `batched` lets a transfer begin when the last one of its batch can."""
        schedule = schedule_of(grid, batched=batched)
        begins = np.array(grid.start)
        for each in schedule.meetings:
            if each.waits:
                begins[list(each.members)] = _begin(grid.start[list(each.members)], (0, -1) if each.replicas else (0,))
        for batch in schedule.batches:
            begins[batch] = np.fmax.reduce(begins[batch], axis=0)
        seconds = grid.end - begins
        waits = [at for each in schedule.meetings if each.waits for at in each.members]
        seconds[waits] = np.where(seconds[waits] <= -SKEW, 0.0, seconds[waits])
        ideal = np.zeros(len(grid.keys))
        for kind in {key.kind for key in grid.keys}:
            chosen = [at for at, key in enumerate(grid.keys) if key.kind == kind]
            known = seconds[chosen][np.isfinite(seconds[chosen])]
            usual = np.median if kind in TALKS else np.mean
            ideal[chosen] = float(usual(known)) if len(known) else 0.0
        return cls(grid, schedule, _filled(grid, seconds), ideal)

    def mixed(self, masks: Mask) -> Floats:
        """Return the mean step with operations made ideal, by mask: of variant, operation and replica."""
        size = max(1, int(MOST_BYTES / max(1, 8 * self.seconds.size)))
        found = []
        for first in range(0, len(masks), size):
            some = masks[first : first + size, :, None, :]
            found.append(self.step(lambda at, some=some: np.where(some[:, at], self.ideal[at], self.seconds[at])))  # type: ignore[misc]
        return np.concatenate(found) if found else np.empty(0)

    def given(self, seconds: Floats) -> float:
        """Return the mean step with these durations."""
        return float(self.step(lambda at: seconds[at][None])[0])

    def step(self, seconds: Callable[[int], Floats]) -> Floats:
        """Return the mean duration of a step in each variant; `seconds` gives those of an operation in all of them."""
        ends: list[Floats] = [np.empty(0)] * len(self.grid.keys)
        total: Floats | None = None
        needs = self.schedule.needs
        for each in self.schedule.meetings:
            lasts = [seconds(at) for at in each.members]
            begin = np.zeros(1)
            for at in each.members:
                for before in needs[at]:
                    if len(ends[before]):  # not there in a circle
                        begin = np.maximum(begin, ends[before])
            if each.replicas and begin.shape[-1] > 1:
                begin = begin.max(axis=-1, keepdims=True)
            for at, each_lasts in zip(each.members, lasts, strict=True):
                ends[at] = begin + each_lasts
                total = ends[at] if total is None else np.maximum(total, ends[at])
        return np.zeros(1) if total is None else np.asarray(total.max(axis=-1).mean(axis=-1))


def _begin(starts: Floats, axes: tuple[int, ...]) -> Floats:
    """Return when the last participant of a meeting has come; NaN where one is not recorded, as it may be the last."""
    begin = np.max(starts, axis=axes, keepdims=True)
    if not np.isfinite(begin).any():  # one never is
        begin = np.fmax.reduce(starts, axis=0, keepdims=True)
        begin = np.fmax.reduce(begin, axis=-1, keepdims=True) if -1 in axes else begin
    return np.asarray(begin[0])


def _filled(grid: Grid, seconds: Floats) -> Floats:
    """Return durations in which an operation that is not recorded takes as long as in other steps and replicas.

    A garbage collection that is not recorded did not happen.
    """
    for at in np.flatnonzero(~np.isfinite(seconds).all(axis=(1, 2))).tolist():
        known = seconds[at][np.isfinite(seconds[at])]
        kind = grid.keys[at].kind
        usual = 0.0 if kind == GC or not len(known) else float((np.median if kind in TALKS else np.mean)(known))
        seconds[at] = np.where(np.isfinite(seconds[at]), seconds[at], usual)
    return seconds
