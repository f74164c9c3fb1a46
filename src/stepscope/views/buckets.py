"""Statistics of a series from its buckets: exact sums, extremes and counts, without reading every point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats, Integers, Mask
    from stepscope.store.pyramid import Blocks
    from stepscope.store.series import Series


@dataclass(frozen=True)
class Buckets:
    """Columns of one series, complete or downsampled: a single point is a bucket of one."""

    rank: NDArray[np.int32]
    attempt: NDArray[np.int32]
    step: Integers
    time: Floats
    """Step and time of the last point; the time in seconds since 1970 UTC."""
    mean: Floats
    """Over the finite points; NaN where there is none."""
    low: Floats
    high: Floats
    last: Floats
    finite: Integers
    """Number of finite points."""
    count: Integers

    def select(self, keep: Mask | slice) -> Buckets:
        """Return the buckets where `keep` holds, or of a slice."""
        return Buckets(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))

    def last_attempt(self) -> Buckets:
        """Return the buckets of the last attempt."""
        return self.select(self.attempt == self.attempt.max()) if len(self.attempt) else self

    def total(self) -> float:
        """Return the sum of the finite points."""
        some = self.finite > 0
        return float((self.mean[some] * self.finite[some]).sum())

    def average(self) -> float | None:
        """Return the mean of the finite points; None if there are none."""
        number = int(self.finite.sum())
        return self.total() / number if number else None

    def lowest(self) -> float | None:
        """Return the lowest finite point."""
        some = self.low[np.isfinite(self.low)]
        return float(some.min()) if len(some) else None

    def highest(self) -> float | None:
        """Return the highest finite point."""
        some = self.high[np.isfinite(self.high)]
        return float(some.max()) if len(some) else None

    def newest(self) -> float | None:
        """Return the last point by time; None if it is not finite or there are no points."""
        if not len(self.time):
            return None
        value = float(self.last[int(np.argmax(self.time))])
        return value if np.isfinite(value) else None

    def figures(self) -> dict[str, Any]:
        """Return count, last (by time), min, max and mean of the points, and how many are not finite."""
        total = int(self.count.sum())
        return {
            "count": total,
            "last": float(self.last[int(np.argmax(self.time))]) if len(self.time) else None,
            "min": self.lowest(),
            "max": self.highest(),
            "mean": self.average(),
            "nonfinite": total - int(self.finite.sum()),
        }


def buckets_of(series: Series) -> Buckets:
    """Return the buckets of a series; without downsampling, a bucket for each point."""
    blocks = series.buckets
    if blocks is None:
        fine = np.isfinite(series.value)
        clean = np.where(fine, series.value, np.nan)
        ones = np.ones(len(series), np.int64)
        shape = (series.rank, series.attempt, series.step, series.time)
        return Buckets(*shape, clean, clean, clean, series.value, fine.astype(np.int64), ones)
    return buckets_of_blocks(blocks)


def buckets_of_blocks(blocks: Blocks) -> Buckets:
    """Return blocks of the pyramid as buckets."""
    place = (blocks.rank, blocks.attempt, blocks.last_step, blocks.last_time / 1e6)
    values = (blocks.mean, blocks.min, blocks.max, blocks.last)
    return Buckets(*place, *values, blocks.count - blocks.nonfinite, blocks.count)
