"""Count the steps of a run for `rates`: recorded ones, and those that arrive while it is watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.store.series import whole
from stepscope.views.buckets import buckets_of
from stepscope.views.rates import StepRates, StepTotals, rates
from stepscope.views.sums import sums_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.store.points import Points
    from stepscope.store.reader import Past
    from stepscope.views.buckets import Buckets
    from stepscope.views.sums import Sums

STEP, SAMPLES = "step_seconds", "samples"


class RankPace(NamedTuple):
    """A rank in an attempt, and how far it was counted."""

    attempt: int
    rank: int
    totals: StepTotals
    until: int
    """Time of the last row, microseconds since 1970 UTC."""


class StepPace:
    """The counted steps of each rank in each attempt."""

    def __init__(self, places: Iterable[RankPace] = ()) -> None:
        """Start with these counts."""
        self._places = {(place.attempt, place.rank): place for place in places}

    @classmethod
    def of(cls, steps: Buckets | None, samples: Buckets | None) -> StepPace:
        """Count recorded steps."""
        found = cls()
        if steps is not None:
            found._count(steps, samples)
        return found

    def _count(self, steps: Buckets, samples: Buckets | None) -> None:
        for attempt, rank in sorted(set(zip(steps.attempt.tolist(), steps.rank.tolist(), strict=True))):
            own = steps.select((steps.attempt == attempt) & (steps.rank == rank))
            given = None if samples is None else samples.select((samples.attempt == attempt) & (samples.rank == rank))
            amount = (0.0, 0) if given is None else (given.total(), int(given.finite.sum()))
            before = self._places.get((attempt, rank), RankPace(attempt, rank, StepTotals(), 0))
            sums = before.totals.with_more(StepTotals(int(own.finite.sum()), own.total(), *amount))
            until = max(before.until, round(float(own.time.max()) * 1e6))
            self._places[attempt, rank] = RankPace(attempt, rank, sums, until)

    def take(self, points: Points) -> None:
        """Count rows of a live run; rows that were counted before, and other metrics, are ignored."""
        codes = {name: code for code, name in enumerate(points.names) if name in {STEP, SAMPLES}}
        parts = {name: points.select(points.name == code) for name, code in codes.items()}
        if STEP not in parts or not len(parts[STEP]):
            return
        new = {name: self._fresh(part) for name, part in parts.items()}
        self._count(new[STEP], new.get(SAMPLES))

    def _fresh(self, part: Points) -> Buckets:
        keys = zip(part.attempt.tolist(), part.rank.tolist(), strict=True)
        seen = np.array([self._places[key].until if key in self._places else 0 for key in keys], np.int64)
        return buckets_of(whole("", part.select(part.time > seen)))

    def places(self) -> list[RankPace]:
        """Return the counts, ordered by attempt and rank."""
        return [self._places[key] for key in sorted(self._places)]

    def attempts(self) -> dict[int, list[StepTotals]]:
        """Return the totals of the ranks of each attempt."""
        found: dict[int, list[StepTotals]] = {}
        for place in self.places():
            found.setdefault(place.attempt, []).append(place.totals)
        return found

    def rates(self) -> StepRates:
        """Return the training speed of the last attempt."""
        found = self.attempts()
        return rates(found[max(found)]) if found else StepRates()


def pace_of(past: Past, sums: Sums | None = None) -> StepPace:
    """Count the steps of a run; its sums need not be read again if they are given."""
    found = sums_of(past, [STEP, SAMPLES]) if sums is None else sums
    return StepPace.of(found.get(STEP), found.get(SAMPLES))
