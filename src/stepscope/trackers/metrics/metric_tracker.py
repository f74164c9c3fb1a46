"""Statistics of named metrics, in process: overall ones and over the newest values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.names import clean
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.metrics.recent_values import RecentValues
from stepscope.trackers.metrics.scalar import scalar_of
from stepscope.trackers.metrics.statistics import Statistics, summarise

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_NAMES = 1000
"""Names one tracker keeps; further ones are refused and counted (each may take 0.8 MB)."""


class MetricTracker:
    """Compute statistics of any number of metrics in bounded memory.

    Count, mean, standard deviation, minimum and maximum are exact over all values ever given. Percentiles are exact
    until there are `capacity` values, then over the newest `capacity`. The standard deviation is the population's
    (ddof=0). NaN and infinities are counted and enter no other figure. An unknown value is None, never 0.
    """

    def __init__(self, *, capacity: int = 100_000) -> None:
        """Keep at most `capacity` values per name (8 bytes each)."""
        self._capacity = capacity
        self._series: dict[str, RecentValues] = {}
        self._last_step: dict[str, int] = {}
        self._notices = Complaints()
        self.refused = 0
        """Values that were not taken: not a number, too many names, or another thread held the series."""

    def update(self, name: str, value: object, step: int | None = None) -> None:
        """Add one value: a number or a one-element tensor. A device tensor is not waited for."""
        number, (label, _problem) = scalar_of(value), clean(name)
        if number is None:
            cause = f"there is no single number in a {type(value).__name__}; give a number or a one-element tensor"
            self._refuse(label, cause, "value")
        elif label not in self._series and (not label or len(self._series) >= MAX_NAMES):
            cause = f"the name is empty or one more than {MAX_NAMES}; name it, or use fewer names"
            self._refuse(label, cause, "names")
        elif not self._of(label).push(number):
            self._refuse(label, "another thread held the tracker; give each thread its own", "busy")
        elif step is not None:
            self._last_step[label] = step

    def _of(self, name: str) -> RecentValues:
        if name not in self._series:
            self._series.setdefault(name, RecentValues(capacity=self._capacity))
        return self._series[name]

    def _refuse(self, name: str, cause: str, kind: str) -> None:
        self.refused += 1
        self._notices.say(kind, f"cannot take metric {name[:80]!r}: {cause}")

    def update_batch(self, values: Mapping[str, object], step: int | None = None) -> None:
        """Add one value for each of several names."""
        for name, value in values.items():
            self.update(name, value, step)

    def names(self) -> list[str]:
        """List the names seen, in the order of their first value."""
        return list(self._series)

    def values(self, name: str) -> list[float]:
        """Return the values of a name that are kept, oldest first."""
        series = self._series.get(clean(name)[0])
        return [] if series is None else series.newest()

    def last_step(self, name: str) -> int | None:
        """Return the step of the newest value that was given with a step."""
        return self._last_step.get(clean(name)[0])

    def get_mean(self, name: str, window: int | None = None) -> float | None:
        """Return the mean over all values, or over the newest `window` of them; None if there is no finite one."""
        return self._statistics(name, window).average

    def get_std(self, name: str, window: int | None = None) -> float | None:
        """Return the population standard deviation (ddof=0), over the same values as `get_mean`."""
        return self._statistics(name, window).std

    def get_summary(self, name: str, window: int | None = None) -> dict[str, float | int | None]:
        """Return count, mean, std, min, max, p50, p95, p99, last and nonfinite; an unknown name has count 0 and None.

        `count` counts all values, `nonfinite` the NaN and infinite ones; all figures but `last` leave those out.
        """
        series = self._series.get(clean(name)[0])
        if series is None:
            return summarise(Statistics(), (), None)
        recent = series.newest(window)
        return summarise(self._statistics(name, window), recent, recent[-1] if recent else None)

    def _statistics(self, name: str, window: int | None) -> Statistics:
        series = self._series.get(clean(name)[0])
        if series is None:
            return Statistics()
        return series.statistics if window is None else Statistics(series.newest(window))
