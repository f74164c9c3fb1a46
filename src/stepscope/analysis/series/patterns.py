"""How a resource is used: evenly, periodically, in bursts, at its limit, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.finding import WithFacts
from stepscope.analysis.series.autocorrelation import autocorrelation
from stepscope.analysis.series.robust import detrended, finite_pairs
from stepscope.analysis.series.trend import trend
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats


CONSTANT, SATURATED, PERIODIC, SWITCHING = "constant", "saturated", "periodic", "switching"
BURSTY, DRIFTING, STEADY, UNKNOWN = "bursty", "drifting", "steady", "unknown"
"""Never changes; at its limit; repeats at equal intervals; alternates between two levels; mostly low with short peaks;
rises or falls throughout; stays around one level; too little data."""

FEWEST = 20
"""Minimum number of points."""
AT_LIMIT, MOSTLY = 0.95, 0.9
"""A resource is saturated if it is above 95 % of its limit at 90 % of the points."""
TWO_LEVELS = 0.8
"""Minimum share of the variance that two levels explain (one broad hump: 0.64 if Gaussian, 0.75 if uniform)."""
RARE = 0.05
"""Minimum share of the points on each of two levels; fewer are bursts."""
BURST = 6.0
"""Minimum height of the 99th percentile above the median, in interquartile ranges (Gaussian: 1.7)."""
RETURNS, SAME = 0.5, 0.8
"""Minimum autocorrelation after one period; a shorter time is the period if it has this share of the best."""
FEWEST_PERIODS = 3
"""Minimum number of periods."""
DRIFT = 0.7
"""Minimum share of the variance that a line explains."""
MOST_POINTS = 2**17
"""A longer series is searched for a period in means of equal blocks."""


@dataclass(frozen=True)
class Pattern(WithFacts):
    """How a resource was used, with basic statistics."""

    kind: str
    """constant, saturated, periodic, switching, bursty, drifting, steady or unknown."""
    reason: str
    """The evidence, or what is missing, in one sentence."""
    points: int = 0
    """Finite points; without any, the statistics are None."""
    mean: float | None = None
    std: float | None = None
    """Standard deviation of the population, as everywhere."""
    min: float | None = None
    median: float | None = None
    p95: float | None = None
    max: float | None = None
    busy_ratio: float | None = None
    """Share of the points on the upper of two levels; None if there are not two."""
    period: float | None = None
    """Time between two repetitions, in the caller's unit; None if nothing repeats."""


def pattern(time: ArrayLike, value: ArrayLike, *, limit: float | None = None) -> Pattern:
    """Return how a resource was used.

    The times, in seconds or steps, are about evenly spaced; non-finite values are ignored; `limit` is the amount
    available.
    """
    when, what = finite_pairs(time, value)
    if not len(what):
        return Pattern(UNKNOWN, "not enough data: no points")
    if len(what) < FEWEST:
        text = f"not enough data: {len(what)} points, of which {FEWEST} are needed"
        return Pattern(UNKNOWN, text, len(what), **figures(what))
    scale = float(np.abs(what).max()) or 1.0
    values = what / scale
    busy, period = busy_ratio(values), _period(when, values)
    kind, reason = _kind(when, values, None if limit is None else limit / scale, busy, period)
    return Pattern(kind, reason, len(what), **figures(what), busy_ratio=busy, period=period)


def figures(values: Floats) -> dict[str, float]:
    """Return mean, std, min, median, p95 and max of finite values, without overflow; empty without any."""
    if not len(values):
        return {}
    scale = float(np.abs(values).max()) or 1.0
    small = values / scale
    low, median, p95, high = np.quantile(small, (0, 0.5, 0.95, 1)).tolist()
    found = {"mean": float(small.mean()), "std": float(small.std()), "min": low, "median": median, "p95": p95}
    return {name: each * scale for name, each in (found | {"max": high}).items()}


def busy_ratio(values: Floats) -> float | None:
    """Return the share of points on the upper of two levels (Otsu's split); None if there are not two levels."""
    ordered = np.sort(values)
    count = len(ordered)
    below = np.arange(1, count)
    sums = np.cumsum(ordered)
    gap = sums[-1] * below / count - sums[:-1]
    between = gap * gap / (below * (count - below))
    best = int(np.argmax(between))
    whole = float(np.var(ordered))
    upper = (count - 1 - best) / count
    return upper if whole > 0 and between[best] >= TWO_LEVELS * whole and RARE <= upper <= 1 - RARE else None


def _kind(
    when: Floats, values: Floats, limit: float | None, busy: float | None, period: float | None
) -> tuple[str, str]:
    low, first, median, third, top = np.quantile(values, (0, 0.25, 0.5, 0.75, 0.99))
    if low == values.max():
        return CONSTANT, "all points are equal"
    if limit is not None:
        share = float(np.mean(values >= AT_LIMIT * limit))
        if share >= MOSTLY:
            return SATURATED, f"{format_share(share)} of the points are at the limit"
    if period is not None:
        return PERIODIC, f"comes back every {period:.4g}"
    if busy is not None:
        return SWITCHING, f"on the upper of two levels {format_share(busy)} of the points"
    line = trend(when, values)
    if line.r_squared is not None and line.r_squared >= DRIFT:
        return DRIFTING, f"a line explains {format_share(line.r_squared)} of the variance"
    if top - median > BURST * (third - first) and median - low < top - median:
        return BURSTY, "the highest hundredth is far above the rest"
    return STEADY, "one level with its noise"


def _period(when: Floats, values: Floats) -> float | None:
    """Return the time after which the series is most similar to itself; None if it does not repeat."""
    size = -(-len(values) // MOST_POINTS)
    whole = len(values) // size * size
    blocks = values[:whole].reshape(-1, size).mean(axis=1)
    count = len(blocks)
    rest = detrended(blocks - blocks.mean())
    if float(np.dot(rest, rest)) <= 1e-24 * count:
        return None
    lags = autocorrelation(rest, count // FEWEST_PERIODS)
    likeness = lags * count / (count - np.arange(len(lags)))
    crossed = np.flatnonzero(likeness < 0)
    if not len(crossed) or crossed[0] + 1 >= len(likeness):
        return None
    after = likeness[crossed[0] : -1]
    if not len(after) or after.max() < RETURNS:
        return None
    first = int(np.argmax(after >= SAME * after.max()))  # not a multiple of the period
    best = int(crossed[0]) + first + int(np.argmax(after[first : 2 * first + 2]))
    return float(best * (when[-1] - when[0]) / (len(when) - 1) * size)
