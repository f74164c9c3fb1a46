"""The finite points of a series, and statistics that a few outliers do not move: median, spread and slope."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats, Integers


SIGMA = 1.4826
"""Standard deviation of Gaussian noise, in median absolute deviations."""
CONFIDENCE_Z = 1.96
"""Standard normal quantile of a 95 % interval."""
SAME_TIME = 1e-9
"""Two points closer than this share of the whole time have no slope."""
LARGEST_FLOAT = float(np.finfo(np.float64).max)


def finite(value: ArrayLike) -> tuple[Floats, Integers]:
    """Return a series as a flat array, and the indices of its finite points."""
    given = np.asarray(value, dtype=np.float64).ravel()
    return given, np.flatnonzero(np.isfinite(given))


def finite_pairs(time: ArrayLike, value: ArrayLike, largest: float = LARGEST_FLOAT) -> tuple[Floats, Floats]:
    """Return the points whose time and value are finite and at most `largest` in size, in order of time."""
    when, what = np.asarray(time, dtype=np.float64).ravel(), np.asarray(value, dtype=np.float64).ravel()
    size = min(len(when), len(what))
    with np.errstate(invalid="ignore"):
        kept = (np.abs(when[:size]) <= largest) & (np.abs(what[:size]) <= largest)
    when, what = when[:size][kept], what[:size][kept]
    if np.any(when[1:] < when[:-1]):
        order = np.argsort(when, kind="stable")
        when, what = when[order], what[order]
    return when, what


def medians(table: Floats) -> Floats:
    """Return the median of each row. numpy's own takes five times as long and loads its masked arrays (3 MiB)."""
    ordered, half = np.sort(table, axis=1), table.shape[1] // 2
    return ordered[:, half] if table.shape[1] % 2 else (ordered[:, half - 1] + ordered[:, half]) / 2


def median(values: ArrayLike) -> float:
    """Return the median of finite values."""
    return float(medians(np.asarray(values, dtype=np.float64)[None, :])[0])


def spread(residuals: Floats) -> float:
    """Return the standard deviation of values around 0, estimated from their median size."""
    return SIGMA * median(np.abs(residuals))


def detrended(values: Floats) -> Floats:
    """Return a series without its linear trend; its mean stays."""
    place = np.arange(len(values)) - (len(values) - 1) / 2
    return np.asarray(values - place * (float(np.dot(place, values)) / float(np.dot(place, place))))


def neighbour_correlation(residuals: Floats) -> float:
    """Return the correlation of neighbouring residuals, limited to 0 to 0.9."""
    power = float(np.dot(residuals, residuals))
    return min(0.9, max(0.0, float(np.dot(residuals[1:], residuals[:-1])) / power)) if power > 0 else 0.0


def theil_sen(time: Floats, value: Floats, quantile: float = CONFIDENCE_Z) -> tuple[float, float, float]:
    """Return the median slope of all pairs of points in order of time, and its interval (Sen's).

    The interval is widened for correlated neighbours; its quantile is of the standard normal distribution.
    """
    first, second = np.triu_indices(len(time), 1)
    span = time[second] - time[first]
    apart = span > SAME_TIME * (time[-1] - time[0])
    slopes = np.sort((value[second][apart] - value[first][apart]) / span[apart])
    middle = float(np.median(slopes))
    rest = value - middle * time
    common = neighbour_correlation(rest - np.median(rest))
    count = len(time)
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18) * math.sqrt((1 + common) / (1 - common))
    reach = quantile * deviation / 2
    last = len(slopes) - 1
    low = slopes[max(0, math.floor(last / 2 - reach))]
    high = slopes[min(last, math.ceil(last / 2 + reach))]
    return middle, float(low), float(high)
