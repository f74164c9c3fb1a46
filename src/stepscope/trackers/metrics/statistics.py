"""Running statistics of one metric: exact over all values, in constant memory.

The standard deviation is the population's (ddof=0, numpy's default) here, in the reader and everywhere else.
Percentiles interpolate linearly between the two nearest values, as numpy does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Statistics:
    """Count, mean, standard deviation, minimum and maximum of finite values; others are only counted."""

    __slots__ = ("_squares", "count", "maximum", "mean", "minimum", "nonfinite")

    def __init__(self, values: Iterable[float] = ()) -> None:
        """Start with the given values."""
        self.count = 0
        """Finite values seen."""
        self.nonfinite = 0
        """NaN and infinities seen; they enter no other figure."""
        self.mean = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf
        self._squares = 0.0
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        """Add one value, by Welford's update, which does not lose digits as a sum of squares does."""
        if not math.isfinite(value):
            self.nonfinite += 1
            return
        self.count += 1
        # Divided before subtracting: the difference of two values near the largest float would overflow.
        delta = value / self.count - self.mean / self.count
        self._squares += delta * delta * self.count * (self.count - 1)
        self.mean += delta
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)

    @property
    def std(self) -> float | None:
        """Population standard deviation (ddof=0); None without a finite value."""
        return math.sqrt(self._squares / self.count) if self.count else None

    @property
    def average(self) -> float | None:
        """Arithmetic mean; None without a finite value."""
        return self.mean if self.count else None


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Return the given percentile of values in ascending order; None when there are none."""
    if not ordered:
        return None
    position = (len(ordered) - 1) * percent / 100.0
    below = math.floor(position)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    if low == high:
        return low
    share = position - below
    return low * (1.0 - share) + high * share


def summarise(statistics: Statistics, recent: Iterable[float], last: float | None) -> dict[str, float | int | None]:
    """Return the figures of one metric, with percentiles over `recent` and the newest value; unknown ones are None."""
    ordered = sorted(value for value in recent if math.isfinite(value))
    known = statistics.count > 0
    return {
        "count": statistics.count + statistics.nonfinite,
        "mean": statistics.average,
        "std": statistics.std,
        "min": statistics.minimum if known else None,
        "max": statistics.maximum if known else None,
        "p50": percentile(ordered, 50),
        "p95": percentile(ordered, 95),
        "p99": percentile(ordered, 99),
        "last": last,
        "nonfinite": statistics.nonfinite,
    }
