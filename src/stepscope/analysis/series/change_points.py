"""Where a series changes for good: its level jumps, or its slope bends.

The series is described by segments, each constant or linear. A description costs its misfit, in units of the noise,
plus a price for every change and every linear segment. Dynamic programming finds the cheapest one: over every position
of a short series, and over the best splits of half-overlapping intervals of all lengths in a long one, about O(n log
n). One or two outlying points are no change; a season is removed first. The noise of a point is estimated from its
neighbours and widened if they are correlated. A series that wanders looks as if its level changed all the time, so the
result is compared with fewer changes plus correlated noise, and the likelier description wins. A history of 3 to 7
points can show one step, if it is far larger than everything else in it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import WithFacts
from stepscope.analysis.series.robust import detrended, finite, spread
from stepscope.analysis.series.seasons import without_season
from stepscope.analysis.series.student import two_sided
from stepscope.core.numbers import format_change

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats, Integers


LEVEL, SLOPE = "level", "slope"
"""What changed."""

SHORTEST = 4
"""Minimum points of a segment. Fewer are an outlier, like the drop at 10 of Otava's TigerBeetle series."""
SHORTEST_LINE = 10
"""Minimum points of a linear segment: a line fits any noise of fewer."""
PENALTY = 3.0
"""Price of a change, times ln n: that of the BINSEG it is measured against. Values from 3 to 4.5 change the F-score on
planted shifts by at most 0.02."""
BEND = 3.0
"""Price of a line instead of a constant, times ln n. With 1, neighbouring levels become a slope (F-score on planted
shifts 0.02 lower); with 5, the bends of tcpd-subset's ozone are missed."""
LEAST_NOISE = 1e-5
"""Minimum noise, relative to the largest value: sums of squares over a million points are not more precise."""
OUTLIER = 4.0
"""A point this many noises away from the median of five neighbours is replaced by that median."""
SHARES = np.linspace(0.0, 0.9, 91)
"""Correlations of neighbours that the noise estimate may find."""
DOUBT = 1.0
"""Standard errors, about 1 / sqrt(n) each, subtracted from an estimated correlation: in a short series it may be
chance."""
LASTING = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Correlations of neighbours in noise that could explain what looks like many changes."""
FEWEST = 3
"""Minimum points to detect one step."""
CHANCE = 0.05
"""Maximum probability that chance alone gives such a step somewhere in a short history."""
LEAST_STEP = 0.03
"""Minimum step to report in a short history, relative to the level before."""
LEAST_STEP_NOISE = 0.002
"""Minimum noise of a short history, relative to its level: two equal points do not mean that there is none."""
MOST_SCORE = 1000.0
TINY = 1e-300
MEET = 0.1
"""The slope, not the level, changed if the two lines meet within this share of the shorter segment."""
EXACT = 1200
"""Up to this many points every position is a candidate (60 ms)."""
SHORT = 4096
"""Up to this many points only numpy is used."""
MOST_CANDIDATES = 1200
"""Maximum candidates in a longer series."""
MOST_BLOCKS = 2**15
"""A longer series is searched in this many block means; then the places are refined point by point."""


@dataclass(frozen=True)
class Change:
    """One lasting change; it begins at its first point."""

    index: int
    """Index into the given series."""
    kind: str
    """level or slope."""
    before: float
    after: float
    """The level just before and just after; for a slope the rise per point."""
    score: float
    """How much worse the description is without this change, in prices of a change: 1 is the minimum."""

    @property
    def shift(self) -> float:
        """Return by how much it changed."""
        return self.after - self.before

    @property
    def ratio(self) -> float | None:
        """Return the change relative to before; None if that was 0."""
        return self.shift / abs(self.before) if self.before else None


@dataclass(frozen=True)
class Changes(WithFacts):
    """The changes of a series."""

    reason: str
    """The evidence, or what is missing, in one sentence."""
    points: int = 0
    """Finite points."""
    changes: tuple[Change, ...] = ()
    noise: float | None = None
    """Standard deviation of one point, widened if neighbours are correlated."""

    @property
    def indices(self) -> list[int]:
        """Return where they are."""
        return [change.index for change in self.changes]


def change_points(value: ArrayLike, *, penalty: float = PENALTY) -> Changes:
    """Find the changes of a series, in its order; non-finite values are ignored. A higher penalty finds fewer."""
    given, place = finite(value)
    count = len(place)
    if count < FEWEST:
        return Changes(f"not enough data: {count} points, of which {FEWEST} are needed", count)
    values = given[place]
    centred, unit = _scaled(values)
    if unit == 0:
        return Changes(f"all {count} points are equal", count, noise=0.0)
    if count < 2 * SHORTEST:
        return _one_step(values, place)
    calm, season = without_season(without_outliers(centred))
    if season:
        calm = without_outliers(calm)  # those that the season hid
    sigma = max(noise(calm), LEAST_NOISE * float(np.abs(calm).max()))
    if sigma == 0:
        return Changes(f"all {count} points but a few are equal", count, noise=0.0)
    splits, wider = _located(calm / sigma, penalty)
    sigma *= wider
    model = _Model(calm / sigma, penalty)
    edges = [0, *splits, count]
    origin, scale = float(np.median(values)), sigma * unit
    changes = tuple(_change(model, edges[at : at + 3], place, origin, scale) for at in range(len(edges) - 2))
    without = f", without a season of {season} points" if season else ""
    return Changes(f"{len(changes)} changes in {count} points{without}", count, changes, scale)


def _one_step(values: Floats, place: Integers) -> Changes:
    """Return the one step of a short history, if it is far larger than the rest of the variation (Student's t)."""
    count = len(values)
    scale = float(np.abs(values).max())
    values = values / scale
    rest, split = min((_left(values[:at]) + _left(values[at:]), at) for at in range(1, count))
    floor = (LEAST_STEP_NOISE * float(np.abs(values).mean())) ** 2
    deviation = math.sqrt(max(rest / (count - 2), floor))
    before, after = float(values[:split].mean()), float(values[split:].mean())
    t = (after - before) / (deviation * math.sqrt(1 / split + 1 / (count - split)))
    chance = two_sided(t, count - 2) * (count - 1)
    drifts = 2 * rest > _left(detrended(values))  # a line explains it about as well
    if chance > CHANCE or drifts or abs(after - before) < LEAST_STEP * abs(before):
        return Changes(f"no step in {count} points that chance or a drift could not give", count, (), deviation * scale)
    score = min(CHANCE / max(chance, TINY), MOST_SCORE)
    step = Change(int(place[split]), LEVEL, before * scale, after * scale, score)
    size = f"{step.shift:+.3g}" if step.ratio is None else format_change(step.ratio)
    seen = "once" if split == count - 1 else f"in {count - split} points"
    return Changes(f"one step of {size} at point {step.index + 1}, seen {seen}", count, (step,), deviation * scale)


def _left(values: Floats) -> float:
    """Return the sum of squared distances from the mean."""
    rest = values - values.mean()
    return float(np.dot(rest, rest))


def noise(values: Floats) -> float:
    """Return the standard deviation of a point around its level, as it counts in a mean over many.

    It uses second differences at distance one and two, which neither a few jumps nor a slope change. If neighbours have
    correlation r, the second is wider, and a mean is less certain by (1 + r) / (1 - r).
    """
    one, two = (_clipped_std(values[: -2 * lag] - 2 * values[lag:-lag] + values[2 * lag :]) ** 2 for lag in (1, 2))
    if one == 0:
        return float(np.mean(np.abs(np.diff(values)))) / 100
    common = float(np.interp(two / one, (1 + SHARES) * (3 - SHARES**2) / (3 - SHARES), SHARES))
    common = max(0.0, common - DOUBT / math.sqrt(len(values)))  # in a short series it may be chance
    alone = one / (2 * (1 - common) * (3 - common))
    return math.sqrt(alone * (1 + common) / (1 - common))


def without_outliers(values: Floats) -> Floats:
    """Return the series with outlying single points and pairs replaced by the median of five neighbours."""
    if len(values) > SHORT:
        from scipy.ndimage import median_filter  # takes 30 MiB: too much for a watcher

        middle = np.asarray(median_filter(values, size=5, mode="nearest"))
    else:
        views = np.lib.stride_tricks.sliding_window_view(np.pad(values, 2, mode="edge"), 5)
        middle = np.asarray(np.partition(views, 2, axis=1)[:, 2])
    deviation = _clipped_std(np.diff(values)) / math.sqrt(2)
    return np.where(np.abs(values - middle) > OUTLIER * deviation, middle, values)


def _clipped_std(differences: Floats) -> float:
    """Return the standard deviation, with jumps and outliers clipped at three robust standard deviations."""
    limit = 3 * spread(differences)
    return math.sqrt(float(np.mean(np.clip(differences, -limit, limit) ** 2)))


def _scaled(values: Floats) -> tuple[Floats, float]:
    """Return the values around their median in units of the largest distance (no overflow), and that unit."""
    away = values * 0.25 - float(np.median(values * 0.25))
    unit = float(np.abs(away).max())
    return (away / unit if unit else away), unit * 4


class _Model:
    """The costs of describing a series by constant and linear segments."""

    def __init__(self, values: Floats, penalty: float) -> None:
        self.count = len(values)
        self.unit = math.log(self.count)
        self.price = penalty * self.unit
        summed = (values, values * values, values * np.arange(self.count))
        self._sum, self._square, self._moment = (np.concatenate([[0.0], np.cumsum(each)]) for each in summed)

    def cost(self, start: Any, stop: Any) -> Any:
        """Return the cheaper of a constant and a line for each segment; starts and stops are numbers or arrays."""
        return np.minimum(*self._misfits(start, stop))

    def line(self, start: int, stop: int) -> tuple[float, float]:
        """Return the value in the middle of a segment and its slope, which is 0 if a constant is cheaper."""
        level, line = self._misfits(start, stop)
        total = self._sum[stop] - self._sum[start]
        size = stop - start
        slope = self._rise(start, stop, total) * 12 / (size * (size * size - 1.0)) if line < level else 0.0
        return float(total / size), float(slope)

    def fitted(self, splits: list[int]) -> Floats:
        """Return the series as the segments between these splits describe it."""
        found = np.empty(self.count)
        for start, stop in itertools.pairwise([0, *splits, self.count]):
            middle, slope = self.line(start, stop)
            found[start:stop] = middle + slope * (np.arange(start, stop) - (start + stop - 1) / 2)
        return found

    def gain(self, start: Any, split: Any, stop: Any) -> Any:
        """Return how much cheaper the description is with a split, not counting the price of the split."""
        return self.cost(start, stop) - self.cost(start, split) - self.cost(split, stop)

    def _misfits(self, start: Any, stop: Any) -> tuple[Any, Any]:
        size = np.asarray(stop - start, dtype=np.float64)
        total = self._sum[stop] - self._sum[start]
        rise = self._rise(start, stop, total)
        level = np.maximum(self._square[stop] - self._square[start] - total * total / size, 0.0)
        line = level - rise * rise * 12 / (np.maximum(size, 2.0) * (np.maximum(size, 2.0) ** 2 - 1))
        return level, np.where(size < SHORTEST_LINE, np.inf, np.maximum(line, 0.0) + BEND * self.unit)

    def _rise(self, start: Any, stop: Any, total: Any) -> Any:
        return self._moment[stop] - self._moment[start] - (start + stop - 1) / 2 * total


def _located(values: Floats, penalty: float) -> tuple[list[int], float]:
    """Return the changes of a series in units of its noise, and by which factor the noise is wider than assumed.

    In a long series they are first found in blocks.
    """
    count = len(values)
    size = -(-count // MOST_BLOCKS)
    if size == 1:
        return _likeliest(values, penalty)
    blocks = count // size
    means = values[: blocks * size].reshape(blocks, size).mean(axis=1) * math.sqrt(size)
    splits, wider = _likeliest(means, penalty)
    rough = [0, *(split * size for split in splits), count]
    model = _Model(values / wider, penalty)
    refined = []
    for start, split, stop in zip(rough, rough[1:], rough[2:], strict=False):
        places = np.arange(split - size, split + size + 1)
        gains = model.gain(max(start, split - 8 * size), places, min(stop, split + 8 * size))
        refined.append(int(places[np.argmax(gains)]))
    return refined, wider


def _likeliest(values: Floats, penalty: float) -> tuple[list[int], float]:
    """Return the splits of the likeliest description, and by which factor its noise is wider.

    The cheapest description assumes uncorrelated noise. It competes with descriptions by fewer of its splits and
    correlated noise: the one that predicts each point best from the point before wins. Every split has its price in all
    of them.
    """
    model = _Model(values, penalty)
    splits = _search(model, _candidates(model))
    if not splits:
        return [], 1.0
    rest = values - model.fitted(splits)
    own = min(max(float(np.dot(rest[1:], rest[:-1]) / max(np.dot(rest, rest), TINY)), 0.0), LASTING[-1])
    best = min(_unlikely(rest, splits, share) for share in (0.0, own)) + model.price * len(splits), splits, 1.0
    for share in LASTING:
        new = values[1:] - share * values[:-1]
        wider = _clipped_std(new - float(np.median(new))) / (1 - share)
        if wider <= 1:
            continue
        other = _Model(values / wider, penalty)
        fewer = _search(other, np.array(splits))
        rest = values - wider * other.fitted(fewer)
        best = min(best, (_unlikely(rest, fewer, share) + model.price * len(fewer), fewer, wider))
    return best[1], best[2]


def _unlikely(rest: Floats, splits: list[int], share: float) -> float:
    """Return how unlikely the residuals are (-2 ln likelihood) if neighbours have this correlation."""
    new = np.append(rest[0], rest[1:] - share * rest[:-1])
    first = [0, *splits]
    new[first] = rest[first] * math.sqrt(1 - share * share)
    return len(rest) * math.log(max(float(np.mean(new * new)), TINY))


def _search(model: _Model, candidates: Integers) -> list[int]:
    """Return the splits of the cheapest description whose splits are all candidates."""
    places = np.concatenate([[0], candidates, [model.count]])
    cost = np.full(len(places), np.inf)
    cost[0] = 0.0
    came = np.zeros(len(places), dtype=np.int64)
    ends = np.searchsorted(places, places - SHORTEST, side="right")
    for at in range(1, len(places)):
        until = ends[at]
        if until:
            total = cost[:until] + model.cost(places[:until], places[at])
            came[at] = np.argmin(total)
            cost[at] = total[came[at]] + model.price
    splits: list[int] = []
    at = int(came[-1])
    while at:
        splits.append(int(places[at]))
        at = int(came[at])
    return splits[::-1]


def _candidates(model: _Model) -> Integers:
    """Return where changes may be: everywhere in a short series, else the best splits of seeded intervals."""
    if model.count <= EXACT:
        return np.arange(SHORTEST, model.count - SHORTEST + 1)
    found, gains = [], []
    length = 4 * SHORTEST
    while length < 2 * model.count:
        size = min(length, model.count)
        starts = np.unique(np.append(np.arange(0, model.count - size + 1, size // 2), model.count - size))
        splits = starts[:, None] + np.arange(SHORTEST, size - SHORTEST + 1)
        gain = model.gain(starts[:, None], splits, starts[:, None] + size)
        best = np.argmax(gain, axis=1)
        rows = np.arange(len(starts))
        found.append(splits[rows, best])
        gains.append(gain[rows, best])
        length *= 2
    where, gain = np.concatenate(found), np.concatenate(gains)
    order = np.argsort(-gain, kind="stable")[:MOST_CANDIDATES]
    return np.unique(where[order[gain[order] > model.price / 2]])


def _change(model: _Model, edges: list[int], place: Integers, origin: float, scale: float) -> Change:
    start, split, stop = edges
    score = float(model.gain(start, split, stop)) / model.price
    (left, rise), (right, fall) = model.line(start, split), model.line(split, stop)
    before = left + rise * (split - start) / 2
    after = right - fall * (stop - split) / 2
    if rise != fall:
        meet = (before - after) / (fall - rise)  # from the split to where both lines are equal
        if abs(meet) <= SHORTEST + MEET * min(split - start, stop - split):
            split = min(max(split + round(meet), start + 1), stop - 1)
            return Change(int(place[split]), SLOPE, rise * scale, fall * scale, score)
    return Change(int(place[split]), LEVEL, origin + before * scale, origin + after * scale, score)
