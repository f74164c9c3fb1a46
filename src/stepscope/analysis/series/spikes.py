"""Loss spikes: where a loss rises at once above what it was.

Each point is judged by the points before it, in units of their usual distance from the median of the last forty. A
falling loss lies below that median, so the start of training is never a spike. One batch that is hard makes one high
point; a model that was thrown back stays high. So a rise that the next point confirms counts at a modest height, and a
single point only where it stands clear of the tail that single points of this very series have: at most one logged
point late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.finding import Facts
from stepscope.analysis.series.anomalies import stretches
from stepscope.analysis.series.rolling import quantile_before

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats, Mask


FEWEST = 20
"""Points before the first that is judged; with fewer it is unknown what is usual."""
WINDOW = 40
"""Points that the level and the usual distance are taken from, as for the marks of that run."""
SHARE = 0.05
"""Rise over the level below which no spike is reported. Those of megatron-golden's mixtral run are 8 % and more."""
CONFIRMED, STAYS = 6.0, 3.0
"""Height of a point, and of the one after it, in usual distances, that together make a spike."""
MEMORY = 500
"""Points before, from which it is known how high points of this series reach without a spike."""
TAIL = 0.98
"""Share of them that is below their reach; a spike occasionally does not move it."""
LEAST_REACH = 2.0
"""Reach at least: that of Gaussian noise."""
ALONE = 5.0
"""Height in reaches at which a point is a spike whatever comes after it: the mixtral run's single points reach 5.5, the
healthy noise of modded-nanogpt's train loss 4.5."""
LONG_MEMORY, LIKE_IT = 2000, 1
"""Points among the last so many that may have had half its height; with more, noise has a heavy tail and it is no
news."""
LEAST_DISTANCE = 1e-3
"""Usual distance at least, relative to the level: a loss that is printed with three digits repeats itself."""
LINEAR = 0.5
"""Rise of a single point beyond which it counts by its logarithm, where no value is 0 or below: the noise of a small
loss is a share of it, and single batches are many times as hard as others."""
DOUBT, YOUNG = 20, 400
"""Points before with which a height counts half, as what is usual is unknown well yet; and with which it counts in
full."""
REST = 5
"""Calm points that end a spike."""


@dataclass(frozen=True)
class Spike:
    """One rise and what became of it. Indices are those of the series as it was given."""

    index: int
    """First point that is high."""
    told: int
    """Point with which it is known: the same or the next."""
    peak: int
    """Highest point."""
    end: int
    """Last point that is high."""
    level: float
    """Median before it."""
    top: float
    """Value at the peak."""
    height: float
    """Rise at the peak in usual distances."""
    recovered: bool
    """Whether the loss came back to within half of `SHARE` of the level before."""

    @property
    def ratio(self) -> float:
        """Return the rise at the peak relative to the level before."""
        return (self.top - self.level) / abs(self.level) if self.level else math.inf


@dataclass(frozen=True)
class Spikes(Facts):
    """The spikes of a series."""

    reason: str
    """The evidence, or what is missing, in one sentence."""
    points: int = 0
    """Finite points."""
    spikes: tuple[Spike, ...] = ()


def spikes(value: ArrayLike) -> Spikes:
    """Find the spikes of a loss in its order; points that are not finite are left out."""
    given = np.asarray(value, dtype=np.float64).ravel()
    place = np.flatnonzero(np.isfinite(given))
    values = given[place]
    if len(values) <= FEWEST:
        return Spikes(f"not enough data: {len(values)} points, of which more than {FEWEST} are needed", len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        level, height, rise = _heights(values, 0)
        confirmed, alone = _told(values, level, height, rise)
    told = confirmed | alone
    found = []
    for first, last in stretches(told | ((height >= STAYS) & (rise >= SHARE / 2)), REST):
        if told[first : last + 1].any():
            start = first + int(np.argmax(told[first : last + 1]))
            peak = start + int(np.argmax(height[start : last + 1]))
            back = bool(np.any(values[peak:] <= level[start] + abs(level[start]) * SHARE / 2))
            index, known, top, end = (int(place[at]) for at in (start, start + (not alone[start]), peak, last))
            found.append(
                Spike(index, known, top, end, float(level[start]), float(given[top]), float(height[peak]), back)
            )
    return Spikes(f"{len(found)} spikes in {len(values)} points", len(values), tuple(found))


def may_spike(value: ArrayLike, newest: int) -> bool:
    """Return whether one of the newest points, or the one before them, is high enough to begin a spike.

    A cheap look at the end of a series, for anyone who follows it as it grows: where it says no, `spikes` of the same
    series tells none that is known with these points.
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
    """Return for each point the level before it, its height over that in usual distances, and its relative rise.

    `seen` is how many points came before the first.
    """
    level = quantile_before(values, WINDOW, 0.5)
    level[0] = values[0]
    size = np.maximum(np.abs(level), 1e-300)
    away = values - level
    return level, _in_usual(away, size, seen), away / size


def _in_usual(away: Floats, size: Floats, seen: int = 0) -> Floats:
    """Return distances from the level in usual ones; they count less while few points have been seen."""
    usual = np.nan_to_num(1.4826 * quantile_before(np.abs(away), WINDOW, 0.5))
    before = np.arange(seen + 1, seen + 1 + len(away))
    height = away / np.maximum(usual, LEAST_DISTANCE * size) / (1 + DOUBT * np.maximum(0, 1 / before - 1 / YOUNG))
    height[: max(0, FEWEST - seen)] = 0.0
    return np.asarray(height)


def _told(values: Floats, level: Floats, height: Floats, rise: Floats) -> tuple[Mask, Mask]:
    """Return which points begin a spike that the next point confirms, and which are one alone."""
    after = np.append(height[1:], 0.0)
    enough = rise >= SHARE
    stays = (height >= CONFIRMED) & (after >= STAYS) & enough
    left_out = stays | _follows(height >= CONFIRMED)
    reach = _reach(np.where(left_out, 0.0, height))
    confirmed = stays & (height >= CONFIRMED / 2 * reach) & (after >= STAYS / 2 * reach)
    single = height
    if values.min() > 0:
        size = np.maximum(level, 1e-300)
        single = _in_usual(size * np.where(rise > LINEAR, LINEAR + np.log((1 + rise) / (1 + LINEAR)), rise), size)
    usual = np.where(left_out, 0.0, single)
    alone = (single >= ALONE * _reach(usual)) & enough
    for at in np.flatnonzero(alone):
        alone[at] = np.sum(usual[max(0, at - LONG_MEMORY) : at] > single[at] / 2) <= LIKE_IT
    return confirmed, alone


def _reach(usual: Floats) -> Floats:
    """Return how high the points before each have reached without a spike."""
    return np.maximum(np.nan_to_num(quantile_before(usual, MEMORY, TAIL)), LEAST_REACH)


def _follows(high: Mask) -> Mask:
    """Return which points come within `REST` points after a high one, as a loss on its way back does."""
    total = np.concatenate([[0], np.cumsum(high)])
    at = np.arange(len(high))
    return np.asarray(total[at] > total[np.maximum(0, at - REST)])
