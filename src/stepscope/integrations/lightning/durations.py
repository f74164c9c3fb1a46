"""Many durations in little memory: their mean is exact, their percentiles come from an even selection."""

from __future__ import annotations

from array import array

KEPT = 1 << 15
"""Values that are kept; beyond it every second one goes, and from then on every second one is taken."""


class Durations:
    """Durations in nanoseconds."""

    def __init__(self, kept: int = KEPT) -> None:
        """Begin with none."""
        self.count = 0
        self.total = 0
        """Sum in ns, of all of them."""
        self._kept, self._stride, self._values = kept, 1, array("q")

    def add(self, nanoseconds: int) -> None:
        """Take one in."""
        if self.count % self._stride == 0:
            self._values.append(nanoseconds)
            if len(self._values) >= self._kept:
                self._values, self._stride = self._values[::2], self._stride * 2
        self.count += 1
        self.total += nanoseconds

    def milliseconds(self) -> dict[str, float]:
        """Return avg, p50, p95 and p99 in ms (percentiles by rank, of what is kept); {} without any."""
        if not self.count:
            return {}
        ordered = sorted(self._values)
        shares = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
        places = {name: min(len(ordered) - 1, int(share * len(ordered))) for name, share in shares.items()}
        return {"avg": self.total / self.count / 1e6, **{name: ordered[at] / 1e6 for name, at in places.items()}}
