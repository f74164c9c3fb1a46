"""The evidence for a diagnosis: steps of every rank, series, events and the machine, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.series.robust import median, spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.analysis.first_error.evidence import FirstError
    from stepscope.core.arrays import Floats, Integers, Mask


RARE = ("checkpoint", "evaluation", "compile")
"""Phases that are measured whenever they happen: a step without a value did not have them."""
FEWEST_SAMPLES = 8
"""Minimum samples during the steps; with fewer, samples before and after count, too."""


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank, in the order in which they ended. A row is one step, or `weight` steps of a long run."""

    rank: int
    step: Integers
    end: Floats
    """End time, in seconds since 1970 or since the start."""
    seconds: Floats
    """Duration; for several steps their mean."""
    phases: Mapping[str, Floats] = field(default_factory=dict)
    """Seconds of each phase, for several steps their mean; NaN if not measured."""
    weight: Floats | None = None
    """Steps of each row; None if every row is one step."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.seconds)

    @cached_property
    def weights(self) -> Floats:
        """Return the steps of each row."""
        return np.ones(len(self)) if self.weight is None else self.weight

    @cached_property
    def count(self) -> int:
        """Return the number of steps."""
        return int(self.weights.sum())

    @cached_property
    def total(self) -> float:
        """Return the seconds of all steps."""
        return float(np.nansum(self.seconds * self.weights))

    @cached_property
    def measured(self) -> Mask:
        """Return in which rows the phases were measured."""
        found = np.zeros(len(self), bool)
        for seconds in self.phases.values():
            found |= np.isfinite(seconds)
        return found

    def phase(self, name: str) -> Floats:
        """Return the seconds of a phase in each measured row; 0 in a step that did not have it."""
        found = self.phases.get(name)
        return np.zeros(int(self.measured.sum())) if found is None else np.nan_to_num(found[self.measured])

    def spent(self, name: str) -> float:
        """Return the seconds of a phase over all steps; unmeasured steps count like the measured ones."""
        kept = self.measured
        inside = float((self.phase(name) * self.weights[kept]).sum())
        if name in RARE or kept.all() or not kept.any():
            return inside
        rare = sum(self.phase(other) for other in RARE)
        known = float(((np.nan_to_num(self.seconds[kept]) - rare) * self.weights[kept]).sum())
        unknown = float(np.nansum((self.seconds * self.weights)[~kept]))
        return inside * (1 + unknown / known) if known > 0 else inside


@dataclass(frozen=True)
class Track:
    """One metric of one rank, in the order of recording; ranks below 0 are samples of a node."""

    step: Integers
    time: Floats
    value: Floats

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.value)

    def where(self, kept: Mask) -> Track:
        """Return some of its points."""
        return Track(self.step[kept], self.time[kept], self.value[kept])

    def finite(self) -> Track:
        """Return its finite points."""
        kept = np.isfinite(self.value)
        return self if kept.all() else self.where(kept)

    def within(self, start: float, end: float) -> Track:
        """Return its points between two times."""
        return self.where((self.time >= start) & (self.time <= end))

    @property
    def range(self) -> list[int]:
        """Return its first and last step."""
        return [int(self.step[0]), int(self.step[-1])]

    @property
    def mean(self) -> float:
        """Return the mean of its finite values; NaN without any."""
        value = self.finite().value
        return float(value.mean()) if len(value) else float("nan")


@dataclass(frozen=True)
class Evidence:
    """Everything known about one run, or about its last attempt."""

    ranks: Sequence[RankSteps] = ()
    series: Mapping[str, Mapping[int, Track]] = field(default_factory=dict)
    """Metrics by their canonical name, then by rank."""
    events: Sequence[Mapping[str, Any]] = ()
    state: str = "finished"
    cause: str = ""
    seconds: float | None = None
    """From the start to the end, or to now."""
    processors: float | None = None
    """Processors that the run may use."""
    foreign: str = ""
    """Format of the source, if it is not our own."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """The node of each rank, where it is known."""
    first_error: FirstError | None = None
    """The error that the others follow from, if the run ended with one."""

    def track(self, name: str, rank: int | None = None) -> Track | None:
        """Return a metric of a rank, or of the lowest rank that has it."""
        found = self.series.get(name)
        if not found:
            return None
        return found.get(rank) if rank is not None else found[min(found)]

    def finite(self, name: str, rank: int | None = None) -> Track:
        """Return the finite points of `track`; no points if the metric is missing."""
        found = self.track(name, rank)
        return found.finite() if found is not None else Track(np.empty(0, np.int64), np.empty(0), np.empty(0))

    def values(self, name: str) -> Floats:
        """Return the finite values of a metric over all ranks."""
        return np.concatenate([np.empty(0), *(one.finite().value for one in self.series.get(name, {}).values())])

    def mean(self, name: str) -> float | None:
        """Return the mean of a metric over its finite values; None without any."""
        values = self.values(name)
        return float(values.mean()) if len(values) else None

    def during(self, track: Track) -> Track:
        """Return the samples taken during the steps; all of them if those are too few."""
        if self.span is None:
            return track
        inside = track.within(*self.span)
        return inside if len(inside) >= FEWEST_SAMPLES else track

    @cached_property
    def span(self) -> tuple[float, float] | None:
        """Return the end of the first step of any rank, and of the last; None without steps."""
        spans = [(float(steps.end[0]), float(steps.end[-1])) for steps in self.ranks if len(steps)]
        return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None

    def stages(self, track: Track) -> list[Track]:
        """Return a series in parts that belong to one training: a new optimizer starts another part."""
        edges = sorted({int(one["step"]) for one in self.of_kind("optimizer_made") if isinstance(one.get("step"), int)})
        # It is created after the last update of the previous stage, and has its step.
        parts = np.searchsorted(np.asarray(edges, np.int64), track.step, "left")
        return [track.where(parts == part) for part in np.unique(parts).tolist()] or [track]

    def of_kind(self, *kinds: str) -> list[Mapping[str, Any]]:
        """Return the events of some kinds, in order of time."""
        return [event for event in self.events if event.get("kind") in kinds]

    def matching(self, first: str, last: str) -> dict[str, Mapping[int, Track]]:
        """Return the metrics whose names start and end like this."""
        return {name: by for name, by in self.series.items() if name.startswith(first) and name.endswith(last)}

    @property
    def leader(self) -> RankSteps | None:
        """Return the steps of the rank that represents all: the one with the most time in steps.

        A rank with phases goes first unless it ran for less than half of that: it shows where the time went.
        """
        longest = max(self.ranks, key=lambda steps: steps.total, default=None)
        divided = [steps for steps in self.ranks if steps.phases and longest and steps.total >= longest.total / 2]
        return max(divided, key=lambda steps: steps.total, default=longest)

    @property
    def is_on_cpu(self) -> bool:
        """Return whether the model is known to run on the CPU."""
        return any(one.get("device") == "cpu" for one in self.of_kind("torch_setup"))


PARTS = 20
"""Number of equal parts whose medians describe the course of a series."""


def course_of(track: Track) -> tuple[Floats, Floats]:
    """Return the medians of equal parts of a series, and the standard deviation inside each."""
    pieces = np.array_split(track.value, min(PARTS, max(1, len(track) // 2)))
    middle = np.array([median(piece) for piece in pieces])
    return middle, np.array([spread(piece - level) for piece, level in zip(pieces, middle, strict=True)])
