"""Training speed: the single definition of steps per second and samples per second, for every screen.

A step lasts from the end of the previous one to its own end, so the seconds of an attempt's steps add up to the time
from the start of its first step to the end of its last. Imports, setup and the time after the last step are not
included.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

DEFINITIONS = {
    "steps_per_second": "steps of the attempt / the sum of their step_seconds, by rank, then the mean over the ranks",
    "samples_per_second": "steps per second * mean samples of a step, by rank, then the sum over the ranks",
}


class StepTotals(NamedTuple):
    """The steps of one rank in one attempt."""

    steps: int = 0
    seconds: float = 0.0
    """Sum of `step_seconds`."""
    samples: float = 0.0
    """Sum over the steps that have a number of samples."""
    sampled: int = 0
    """Number of those steps."""

    @property
    def rate(self) -> float | None:
        """Steps per second; None without steps."""
        return self.steps / self.seconds if self.steps and self.seconds > 0 else None

    def with_more(self, more: StepTotals) -> StepTotals:
        """Return the sum of these steps and more."""
        return StepTotals(*map(operator.add, self, more))


class StepRates(NamedTuple):
    """Rates for a screen; None is unknown."""

    steps_per_second: float | None = None
    samples_per_second: float | None = None


def rates(ranks: Collection[StepTotals]) -> StepRates:
    """Return the combined speed of the ranks of one attempt."""
    known = [rate for one in ranks if (rate := one.rate) is not None]
    taken = [rate * one.samples / one.sampled for one in ranks if one.sampled and (rate := one.rate) is not None]
    return StepRates(sum(known) / len(known) if known else None, sum(taken) if taken else None)
