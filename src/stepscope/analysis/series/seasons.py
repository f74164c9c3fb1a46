"""Seasons: what a series repeats, such as a day of 24 hours, a year of 12 months or a validation every 50 steps.

A season is not a change. Its period comes from the autocorrelation of values that neither a trend nor a jump moves
much. Its pattern is the median at each position in the period; the height may grow and shrink along the series.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.series.autocorrelation import autocorrelation
from stepscope.analysis.series.robust import detrended, spread

if TYPE_CHECKING:
    from stepscope.core.arrays import Floats


SHORTEST, LONGEST = 4, 60
"""Shortest and longest period, in points. What recurs after more, such as a level that returns, is a change each
time."""
SEASONS = 4
"""Minimum number of periods in a series."""
RECURS, SMOOTH = 0.3, 0.5
"""Minimum autocorrelation after one period: of differences, and of values around a moving mean, where correlated noise
has some, too. After two periods half of it is enough."""
CERTAIN = 4.0
"""It must also be this many times 1 / sqrt(n): by chance one of sixty periods reaches 3."""
NEARLY = 0.8
"""A half, third or quarter of the best period is preferred if it has this share of its autocorrelation."""
NEAR = 2
"""The first estimate of the period may be off by this many points."""
CLIPPED = 4.0
"""Differences are clipped at this many standard deviations: jumps and outliers are no season."""
WIDTHS = (16, 32, 64, 128)
"""Widths of the moving means."""
MOST_POINTS = 2**16
"""The period is estimated from at most this many points."""
HEIGHT = 2
"""Degree of the polynomial by which the height of the pattern changes along the series."""


def without_season(values: Floats) -> tuple[Floats, int]:
    """Return a finite series without its season, and the period in points; the series itself and 0 if it has none."""
    points = period(values)
    if not points:
        return values, 0
    count = len(values)
    rest = detrended(values)  # a moving mean lags behind a trend at the ends
    rest = rest - _moving(rest, points)
    table = np.full(-(-count // points) * points, np.nan)
    table[:count] = rest
    pattern = np.nanmedian(table.reshape(-1, points), axis=0)
    pattern = np.tile(pattern - pattern.mean(), -(-count // points))[:count]
    along = np.linspace(-1.0, 1.0, count)
    basis = np.stack([pattern * along**power for power in range(HEIGHT + 1)], axis=1)
    heights = np.linalg.lstsq(basis, rest, rcond=None)[0]
    return values - basis @ heights, points


def period(values: Floats) -> int:
    """Return the period of a series in points; 0 if it does not repeat itself."""
    values = detrended(values[:MOST_POINTS])
    longest = min(LONGEST, len(values) // SEASONS)
    if longest <= SHORTEST:
        return 0
    # A rough pattern shows in the differences, a smooth one in what lies above and below a moving mean.
    heights = _recurrence(np.diff(values), longest, RECURS)
    for width in WIDTHS:
        if width <= 2 * longest:
            smooth = _recurrence(values - _moving(values, width), longest, SMOOTH)
            smooth[: width // 2] = 0.0  # what is shorter shows in the differences
            heights = np.maximum(heights, smooth)
    best = int(np.argmax(heights))
    for parts in (4, 3, 2):
        place = round(best / parts)
        near = heights[max(place - 1, SHORTEST) : place + 2]
        if len(near) and near.max() > NEARLY * heights[best] > 0:
            best = max(place - 1, SHORTEST) + int(np.argmax(near))
            break
    return _sharpened(values, best) if heights[best] > 0 else 0


def _sharpened(values: Floats, rough: int) -> int:
    """Return the period near a rough one whose pattern explains most: smooth patterns recur almost as well nearby."""
    rest = values - _moving(values, rough)

    def explained(points: int) -> float:
        place = np.arange(len(rest)) % points
        sums, counts = np.bincount(place, rest), np.bincount(place)
        return float(np.sum(sums * sums / counts)) - points * float(rest.var())

    return max(range(max(SHORTEST, rough - NEAR), rough + NEAR + 1), key=explained)


def _recurrence(rest: Floats, longest: int, least: float) -> Floats:
    """Return the autocorrelation at each lag up to `longest`; 0 where the series does not repeat itself.

    It must reach `least` after one period, and half of it after two; `rest` are values without trend and level.
    """
    limit = CLIPPED * spread(rest)
    rest = np.clip(rest, -limit, limit)
    common = autocorrelation(rest - rest.mean(), 2 * longest + 1)
    lags = np.arange(SHORTEST, longest + 1)
    peak = (common[lags] >= common[lags - 1]) & (common[lags] >= common[lags + 1])
    certain = common[lags] > max(least, CERTAIN / math.sqrt(len(rest)))
    again = common[2 * lags] > least / 2
    return np.concatenate([np.zeros(SHORTEST), np.where(peak & certain & again, common[lags], 0.0)])


def _moving(values: Floats, width: int) -> Floats:
    """Return the mean of `width` points around each point; near the ends, of the first or last `width` points."""
    width = min(width, len(values))
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.clip(np.arange(len(values)) - width // 2, 0, len(values) - width)
    return np.asarray((sums[first + width] - sums[first]) / width)
