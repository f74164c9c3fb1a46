"""Loss spikes: where a loss suddenly rises above its recent level.

Each point is compared with the points before it: its distance from the median of the last forty, in units of their
usual distance. A falling loss lies below that median, so the start of training is never a spike. One hard batch gives
one high point, but a model that was thrown back stays high. So a moderate rise counts if the next point confirms it,
and a single point counts only if it exceeds what single points of this series usually reach. A spike is known at most
one logged point late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.finding import WithFacts
from stepscope.analysis.series.anomalies import spans
from stepscope.analysis.series.robust import SIGMA, finite
from stepscope.analysis.series.rolling import quantile_before

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats, Mask


FEWEST = 20
"""Points before the first one that is judged: with fewer the usual distance is unknown."""
WINDOW = 40
"""Points from which level and usual distance are taken, as in the labels of megatron-golden's mixtral run."""
SHARE = 0.05
"""Minimum rise, relative to the level. The spikes of megatron-golden's mixtral run are 8 % and more."""
CONFIRMED, STAYS = 6.0, 3.0
"""Minimum height of a point, and of the one after it, in usual distances, that together make a spike."""
MEMORY, TAIL, LEAST_REACH = 500, 0.98, 2.0
"""The reach of a series without spikes is this quantile of the heights of the last 500 points, which a few spikes do
not move; at least that of Gaussian noise."""
ALONE = 5.0
"""Height, in reaches, at which a single point is a spike: those of the mixtral run reach 5.5, the healthy noise of
modded-nanogpt's train loss 4.5."""
LONG_MEMORY, LIKE_IT = 2000, 1
"""A single point is no spike if more than this many of so many previous points had half its height: the noise has a
heavy tail."""
LEAST_DISTANCE = 1e-3
"""Minimum usual distance, relative to the level: a loss that is logged with three digits often repeats itself."""
LINEAR = 0.5
"""A larger rise of a single point counts by its logarithm if all values are positive: the noise of a small loss is
relative, and single batches can be many times as hard as others."""
DOUBT, YOUNG = 20, 400
"""With this many previous points a height counts half, because the usual distance is uncertain; with this many, in
full."""
REST = 5
"""A spike ends after this many calm points."""


@dataclass(frozen=True)
class Spike:
    """One rise and how it ended. Indices refer to the given series."""

    index: int
    """First high point."""
    told: int
    """Point at which the spike is certain: the same or the next."""
    peak: int
    """Highest point."""
    end: int
    """Last high point."""
    level: float
    """Median before it."""
    top: float
    """Value at the peak."""
    height: float
    """Rise at the peak in usual distances."""
    recovered: bool
    """Whether the loss came back to within half of `SHARE` above the level before."""

    @property
    def ratio(self) -> float:
        """Return the rise at the peak relative to the level before."""
        return (self.top - self.level) / abs(self.level) if self.level else math.inf


@dataclass(frozen=True)
class Spikes(WithFacts):
    """The spikes of a series."""

    reason: str
    """The evidence, or what is missing, in one sentence."""
    points: int = 0
    """Finite points."""
    spikes: tuple[Spike, ...] = ()


def spikes(value: ArrayLike) -> Spikes:
    """Find the spikes of a loss, in its order; non-finite points are ignored."""
    given, place = finite(value)
    values = given[place]
    if len(values) <= FEWEST:
        return Spikes(f"not enough data: {len(values)} points, of which more than {FEWEST} are needed", len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        level, height, rise = _heights(values, 0)
        confirmed, alone = _starts(values, level, height, rise)
    starts = confirmed | alone
    found = []
    for first, last in spans(starts | ((height >= STAYS) & (rise >= SHARE / 2)), REST):
        if starts[first : last + 1].any():
            start = first + int(np.argmax(starts[first : last + 1]))
            peak = start + int(np.argmax(height[start : last + 1]))
            before = float(level[start])
            back = bool(np.any(values[peak:] <= before + abs(before) * SHARE / 2))
            index, known, top, end = (int(place[at]) for at in (start, start + (not alone[start]), peak, last))
            found.append(Spike(index, known, top, end, before, float(given[top]), float(height[peak]), back))
    return Spikes(f"{len(found)} spikes in {len(values)} points", len(values), tuple(found))


def may_spike(value: ArrayLike, newest: int) -> bool:
    """Return whether one of the newest points, or the one before them, is high enough to begin a spike.

    A cheap check for following a series as it grows: if it is False, `spikes` reports no spike that ends with these
    points.
    """
    whole = np.asarray(value, dtype=np.float64).ravel()
    given = whole[-(newest + 2 * WINDOW + 2) :]
    values = given[np.isfinite(given)]
    if len(values) <= FEWEST:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        _, height, rise = _heights(values, len(whole) - len(given))
    return bool(np.any((height[-newest - 1 :] >= CONFIRMED) & (rise[-newest - 1 :] >= SHARE)))


def _heights(values: Floats, seen: int) -> tuple[Floats, Floats, Floats]:
    """Return for each point the level before it, its height in usual distances, and its relative rise.

    `seen` is the number of points before the first.
    """
    level = quantile_before(values, WINDOW, 0.5)
    level[0] = values[0]
    size = np.maximum(np.abs(level), 1e-300)
    away = values - level
    return level, _in_usual(away, size, seen), away / size


def _in_usual(away: Floats, size: Floats, seen: int = 0) -> Floats:
    """Return distances from the level in usual distances; they count less while few points have been seen."""
    usual = np.nan_to_num(SIGMA * quantile_before(np.abs(away), WINDOW, 0.5))
    before = np.arange(seen + 1, seen + 1 + len(away))
    height = away / np.maximum(usual, LEAST_DISTANCE * size) / (1 + DOUBT * np.maximum(0, 1 / before - 1 / YOUNG))
    height[: max(0, FEWEST - seen)] = 0.0
    return np.asarray(height)


def _starts(values: Floats, level: Floats, height: Floats, rise: Floats) -> tuple[Mask, Mask]:
    """Return which points begin a spike that the next point confirms, and which are a spike alone."""
    after = np.append(height[1:], 0.0)
    enough = rise >= SHARE
    stays = (height >= CONFIRMED) & (after >= STAYS) & enough
    high_before = np.concatenate([[0], np.cumsum(height >= CONFIRMED)])
    at = np.arange(len(height))
    recovering = high_before[at] > high_before[np.maximum(0, at - REST)]  # on the way back from a high point
    left_out = stays | recovering
    reach = _reach(np.where(left_out, 0.0, height))
    confirmed = stays & (height >= CONFIRMED / 2 * reach) & (after >= STAYS / 2 * reach)
    single = height
    if values.min() > 0:
        size = np.maximum(level, 1e-300)
        single = _in_usual(size * np.where(rise > LINEAR, LINEAR + np.log((1 + rise) / (1 + LINEAR)), rise), size)
    usual = np.where(left_out, 0.0, single)
    alone = (single >= ALONE * _reach(usual)) & enough
    for high in np.flatnonzero(alone):
        alone[high] = np.sum(usual[max(0, high - LONG_MEMORY) : high] > single[high] / 2) <= LIKE_IT
    return confirmed, alone


def _reach(usual: Floats) -> Floats:
    """Return how high the points before each one reached without a spike."""
    return np.maximum(np.nan_to_num(quantile_before(usual, MEMORY, TAIL)), LEAST_REACH)
