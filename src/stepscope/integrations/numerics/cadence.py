"""Choose how often to measure, so that the cost stays within a share of the training's time."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CHEAP_SECONDS = 0.005
"""A first measurement with a higher expected cost waits until the duration of a step is known."""
OPENING_SECONDS = 0.01
"""Total cost allowed in addition to a budget above 0, so that a run of one second gets measurements too."""
LONGEST = 100_000
"""Maximum steps between two measurements, whatever they cost."""


class Cadence:
    """Decide at each step whether to measure: every `every` steps, and less often if that would exceed the budget."""

    def __init__(
        self, every: int = 10, budget: float | None = 0.003, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Allow `budget` of the training's time (None: no limit); `clock` returns seconds."""
        self._every, self._budget, self._clock = max(1, int(every)), budget, clock
        self._since, self._taken = self._every, 0
        self._cost = self._expected = self._step = self._spent = 0.0
        self._mark: float | None = None

    @property
    def interval(self) -> int:
        """Return the current number of steps between two measurements."""
        cost = self._cost or self._expected
        if self._budget is None or not self._step or not cost:
            return self._every
        if self._budget <= 0:
            return LONGEST
        if self._spent + cost < OPENING_SECONDS:
            return self._every
        return min(LONGEST, max(self._every, math.ceil(cost / (self._budget * self._step))))

    @property
    def is_priced(self) -> bool:
        """Return whether the cost of a measurement is known or estimated."""
        return self._cost > 0 or self._expected > 0

    def due(self, expected: float = 0.0) -> bool:
        """Return whether to measure this step; `expected` is the estimated cost in seconds until one is known."""
        if expected:
            self._expected = expected
        if self._budget and not self._cost and not self._step and self._expected > CHEAP_SECONDS:
            return False
        return self._since >= self.interval

    def start(self) -> float:
        """Return the time at which a measurement starts, for `stop`."""
        return self._clock()

    def stop(self, start: float, more: float = 0.0) -> None:
        """End a measurement; `more` is its further cost in seconds, such as on a device."""
        cost = self._clock() - start + more
        self._spent += cost
        # The first measurement includes warm-up: a cheaper second one replaces it. Later ones are averaged.
        replaces = not self._taken or (self._taken == 1 and cost < self._cost)
        self._cost = cost if replaces else 0.8 * self._cost + 0.2 * cost
        self._taken, self._since = self._taken + 1, 0

    def step(self, count: int = 1) -> None:
        """Count the steps that have ended since the last call."""
        now, self._since = self._clock(), self._since + count
        if self._mark is not None:
            took = max(0.0, now - self._mark) / max(1, count)
            kept = 0.9**count  # many skipped steps outweigh the measured one
            # An evaluation or a checkpoint in between must not make the average step long.
            self._step = kept * self._step + (1 - kept) * min(took, 4 * self._step) if self._step else took
        self._mark = now
