"""The standard error of a mean when neighbouring values are correlated.

Step times and losses are not independent: a slow period lasts for many steps. `mean_error` estimates how many
independent values a series is worth (n divided by its integrated autocorrelation time, by Geyer's initial monotone
sequence) and returns the standard error that follows. A drift or a jump counts as correlation, so it widens the error.
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
"""A longer series is first averaged in equal blocks, which is precise enough for the error of a mean (about 10 ms)."""
LEAST_EFFECTIVE = 3.0
"""Minimum number of independent values: otherwise a drifting series would be worth none."""


@dataclass(frozen=True)
class Mean:
    """A mean and its precision."""

    value: float
    """The mean; NaN without finite values."""
    error: float
    """Its standard error; NaN with fewer than two values."""
    effective: float
    """Number of independent values that the series is worth."""
    points: int
    """Finite values."""


def mean_error(value: ArrayLike) -> Mean:
    """Return the mean of the finite values of a series, in their order, with its standard error."""
    finite = np.asarray(value, np.float64).ravel()
    finite = finite[np.isfinite(finite)]
    if len(finite) < 2:
        return Mean(float(finite[0]) if len(finite) else math.nan, math.nan, float(len(finite)), len(finite))
    scale = float(np.abs(finite).max())
    if scale == 0.0:
        return Mean(0.0, 0.0, float(len(finite)), len(finite))
    series = finite / scale
    size = -(-len(series) // MOST_POINTS)
    if size > 1:  # incomplete blocks are dropped
        series = series[: len(series) // size * size].reshape(-1, size).mean(axis=1)
    time = correlation_time(series)
    effective = max(min(LEAST_EFFECTIVE, len(series)), len(series) / time)
    spread = float(series.var(ddof=1)) / max(1.0 - 1.0 / effective, 0.5)  # a drifting mean hides a part of it
    error = math.sqrt(spread / effective)
    return Mean(float((finite / scale).mean()) * scale, error * scale, effective, len(finite))


def correlation_time(series: Floats) -> float:
    """Return the integrated autocorrelation time: how many finite values in a row are worth one. At least 1."""
    count = len(series)
    rest = series - series.mean()
    power = float(np.dot(rest, rest))
    if count < 4 or power <= count * (4 * np.finfo(float).eps * float(np.abs(series).max())) ** 2:
        return 1.0
    common = autocorrelation(rest, count - 1)
    pairs = common[: count // 2 * 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: ends[0]] if len(ends) else pairs)
    return min(float(count), max(1.0, 2.0 * float(pairs.sum()) - 1.0))


def autocorrelation(rest: Floats, longest: int) -> Floats:
    """Return the autocorrelation of values around zero at lags 0 to `longest`; all 0 for values of zero."""
    size = 1 << (len(rest) + longest).bit_length()
    spectrum = np.fft.rfft(rest, size)
    common = np.fft.irfft(spectrum * spectrum.conj(), size)[: longest + 1]
    return np.asarray(common / common[0] if common[0] > 0 else np.zeros(longest + 1))
