"""The standard error of a mean when neighbouring values are correlated.

Step times and losses are not independent draws: a slow moment lasts for many steps. `mean_error` counts how many
independent values a series is worth (n divided by its integrated autocorrelation time, by Geyer's initial monotone
sequence) and gives the standard error that follows. A drift or a jump inside the series counts as correlation, so it
widens the error instead of hiding in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats


MOST_POINTS = 1 << 17
"""Points from which a series is first averaged in equal blocks: a mean's error needs no more (about 10 ms)."""
LEAST_EFFECTIVE = 3.0
"""Independent values that a series is worth at least: one that only drifts would else be worth none."""


@dataclass(frozen=True)
class Mean:
    """A mean and how well it is known."""

    value: float
    """The mean; NaN without finite values."""
    error: float
    """Its standard error; NaN where there are too few values to tell (fewer than two)."""
    effective: float
    """Independent values that the series is worth."""
    points: int
    """Finite values."""

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the error."""
        return max(1.0, self.effective - 1.0)


def mean_error(value: ArrayLike) -> Mean:
    """Return the mean of the finite values of a series, in their order, with its standard error."""
    finite = np.asarray(value, np.float64).ravel()
    finite = finite[np.isfinite(finite)]
    if len(finite) < 2:
        return Mean(float(finite[0]) if len(finite) else math.nan, math.nan, float(len(finite)), len(finite))
    scale = float(np.abs(finite).max())
    if scale == 0.0:
        return Mean(0.0, 0.0, float(len(finite)), len(finite))
    series = _blocked(finite / scale)
    time = correlation_time(series)
    effective = max(min(LEAST_EFFECTIVE, len(series)), len(series) / time)
    spread = float(series.var(ddof=1)) / max(1.0 - 1.0 / effective, 0.5)  # a drifting mean hides a part of it
    error = math.sqrt(spread / effective)
    return Mean(float((finite / scale).mean()) * scale, error * scale, effective, len(finite))


def correlation_time(series: Floats) -> float:
    """Return the integrated autocorrelation time: how many values in a row are worth one. At least 1.

    Args:
        series: finite values in their order.
    """
    count = len(series)
    rest = series - series.mean()
    power = float(np.dot(rest, rest))
    if count < 4 or power <= count * (4 * np.finfo(float).eps * float(np.abs(series).max())) ** 2:
        return 1.0
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(rest, size)
    common = np.fft.irfft(spectrum * spectrum.conj(), size)[:count] / power
    pairs = common[: count // 2 * 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: ends[0]] if len(ends) else pairs)
    return min(float(count), max(1.0, 2.0 * float(pairs.sum()) - 1.0))


def _blocked(series: Floats) -> Floats:
    """Return a long series as means of equal blocks; what is left over at the end goes into none."""
    size = -(-len(series) // MOST_POINTS)
    return series if size <= 1 else series[: len(series) // size * size].reshape(-1, size).mean(axis=1)
