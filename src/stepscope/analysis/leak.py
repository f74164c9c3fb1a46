"""Does memory leak? Tell lasting growth from warm-up, caches that fill, single jumps and sawtooth.

The measure is the *lasting level*: the value below which the series never fell again. A garbage collector's sawtooth
or a larger batch lifts a reading and lets go of it, so the lasting level stays; a leak lifts it again and again. Growth
is said only where the lasting level rose in nearly every part of a stretch, about evenly, and still does.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Numbers = NDArray[np.float64]

GROWTH, SETTLING, JUMP, STEADY, UNKNOWN = "growth", "settling", "jump", "steady", "unknown"
"""It leaks; it rose and levelled off; it rose at once and stayed; it stays; there is too little to tell."""

FEWEST = 12
"""Measurements below which nothing is said."""
MOST_BLOCKS = 120
"""Blocks that a long series is reduced to; the lowest value of each stands for it."""
STARTS = (0.0, 0.25, 0.5, 0.75)
"""Where a stretch may begin, as a share of the time: growth may follow a warm-up, or come late."""
PARTS = 6
"""Equal spans that a stretch is cut into to see whether growth is spread over it."""
END_SHARE = 0.1
"""Share of a stretch at its end that is not judged: nobody knows yet whether memory is let go again."""
CONFIDENCE_Z = 1.96
"""Standard normal quantile of the 95 % interval."""
LEAST_BYTES = 8 * 2**20
"""Rise that is worth a word, in bytes."""


@dataclass(frozen=True)
class Trend:
    """What a series of memory readings does. Rates are values per unit of time, as the caller's clock has it."""

    verdict: str
    """growth, settling, jump, steady or unknown."""
    reason: str
    """The evidence, in one sentence."""
    points: int = 0
    """Finite readings that were judged."""
    level: float | None = None
    """The newest level: the median of the last readings."""
    rate: float | None = None
    """Growth per unit of time since `since` (median of the slopes between all pairs: Theil and Sen)."""
    rate_low: float | None = None
    rate_high: float | None = None
    """95 % interval of the rate."""
    since: float | None = None
    """When the growth began."""
    risen: float | None = None
    """By how much the lasting level rose since then."""
    left: float | None = None
    """Time until the highest of the last readings reaches the limit at this rate; None without growth or limit."""
    left_low: float | None = None
    left_high: float | None = None
    """95 % interval of that; `left_high` is None if the rate may also be zero."""

    @property
    def growing(self) -> bool:
        """Whether this is a leak."""
        return self.verdict == GROWTH

    def facts(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return asdict(self)


def assess(time: ArrayLike, value: ArrayLike, *, limit: float | None = None, least: float = LEAST_BYTES) -> Trend:
    """Judge a series of memory readings that were taken at comparable moments.

    Args:
        time: when each was taken: seconds, or steps. Any order.
        value: the readings; those that are not finite are left out.
        limit: where memory ends, in the same unit; None if nobody knows.
        least: rise below which nothing is called growth.
    """
    when, what = _clean(time, value)
    if len(when) < FEWEST or when[-1] <= when[0]:
        return Trend(UNKNOWN, f"{len(when)} readings, of which {FEWEST} at different times are needed", len(when))
    level = float(np.median(what[-max(3, len(what) // 20) :]))
    time_of, floor = _blocks(when, what)
    best: _Stretch | None = None
    for start in STARTS:
        first = int(np.searchsorted(time_of, time_of[0] + start * (time_of[-1] - time_of[0])))
        if len(floor) - first < FEWEST - 2:
            break
        stretch = _Stretch.of(time_of[first:], floor[first:], least).after(time_of[:first], floor[:first])
        best = best or stretch
        if stretch.verdict == GROWTH:
            return _growth(stretch, (when, what), level, limit)
    assert best is not None  # noqa: S101 - FEWEST readings make at least as many blocks
    return Trend(best.verdict, best.reason, len(when), level)


@dataclass(frozen=True)
class _Stretch:
    """A stretch of the series: its blocks, and what the lasting level does in it."""

    time: Numbers
    floor: Numbers
    verdict: str
    reason: str
    risen: float = 0.0

    @classmethod
    def of(cls, time: Numbers, floor: Numbers, least: float) -> _Stretch:
        """Judge one stretch."""
        lasting = np.minimum.accumulate(floor[::-1])[::-1]
        end = time[-1] - END_SHARE * (time[-1] - time[0])
        edges = np.interp(np.linspace(time[0], end, PARTS + 1), time, lasting)
        rises = np.diff(edges)
        risen = float(edges[-1] - edges[0])
        noise = _noise(floor)
        small = f"the lasting level rose by {risen:.4g}, within the noise or too little"
        if risen < max(least, 1.5 * noise, 1e-4 * abs(float(np.median(floor)))):
            return cls(time, floor, STEADY, small)
        grew = rises > 0.1 * risen / PARTS
        largest = float(np.max(np.diff(lasting[time <= end], prepend=edges[0]))) / risen
        text = f"the lasting level rose by {risen:.4g} in {int(grew.sum())} of {PARTS} equal spans"
        early, late = float(rises[: PARTS // 2].sum()), float(rises[PARTS // 2 :].sum())
        fades = late < 0.6 * early or not (grew[-1] or grew[-2])
        spread = int(grew.sum()) >= PARTS - 1 and float(rises.max()) <= 0.5 * risen
        if largest <= 0.4 and not fades and spread:
            return cls(time, floor, GROWTH, f"{text}, and goes on", risen)
        if risen < 4 * noise:
            return cls(time, floor, STEADY, small)
        if largest > 0.4:
            return cls(time, floor, JUMP, f"{text}, {largest:.0%} of it at once", risen)
        if fades:
            return cls(time, floor, SETTLING, f"{text}, less and less", risen)
        return cls(time, floor, STEADY, f"{text}, which is not steady growth", risen)

    def after(self, time: Numbers, floor: Numbers) -> _Stretch:
        """Return the stretch beside what was before it: a sawtooth's last tooth or a warm-up's end is no growth."""
        if self.verdict != GROWTH or len(time) < 3:
            return self
        if float(np.median(self.floor[-3:])) <= float(np.quantile(floor, 0.95)):
            return replace(self, verdict=STEADY, reason=f"{self.reason}, but it was as high before and fell again")
        span = self.time[-1] - self.time[0]
        before = time >= self.time[0] - span
        own, earlier = _rate(self.time, self.floor), _rate(time[before], floor[before])
        if self.time[0] - time[0] > span / 2 and own < 0.6 * earlier:
            return replace(self, verdict=SETTLING, reason=f"{self.reason}, but more slowly than before")
        return self


def _rate(time: Numbers, floor: Numbers) -> float:
    """Return the slope between the first and the last third of some blocks; 0 if there are too few."""
    third = len(time) // 3
    if third < 1:
        return 0.0
    rise = float(np.median(floor[-third:]) - np.median(floor[:third]))
    return rise / float(np.mean(time[-third:]) - np.mean(time[:third]))


def _growth(stretch: _Stretch, readings: tuple[Numbers, Numbers], level: float, limit: float | None) -> Trend:
    """Say how fast a stretch grows, since when, and how long that can go on."""
    since = _onset(stretch.time, stretch.floor)
    grown = stretch.time >= since
    if int(grown.sum()) < FEWEST:
        grown = np.ones(len(stretch.time), dtype=bool)
        since = float(stretch.time[0])
    rate, low, high = theil_sen(stretch.time[grown], stretch.floor[grown])
    when, what = readings
    left = left_low = left_high = None
    if limit is not None and rate > 0:
        room = max(0.0, limit - float(np.max(what[-max(3, len(what) // 10) :])))
        left, left_low, left_high = room / rate, room / high, room / low if low > 0 else None
    return Trend(
        GROWTH, stretch.reason, len(when), level, rate, low, high, since, stretch.risen, left, left_low, left_high
    )


def theil_sen(time: Numbers, value: Numbers) -> tuple[float, float, float]:
    """Return the median slope of all pairs and its 95 % interval (Sen's, widened for what neighbours have in common).

    Args:
        time: at least two different moments.
        value: a value at each.
    """
    first, second = np.triu_indices(len(time), 1)
    span = time[second] - time[first]
    apart = span > 0
    slopes = np.sort((value[second][apart] - value[first][apart]) / span[apart])
    middle = float(np.median(slopes))
    rest = value - middle * time
    rest = rest - np.median(rest)
    power = float(np.dot(rest, rest))
    common = min(0.9, max(0.0, float(np.dot(rest[1:], rest[:-1])) / power)) if power > 0 else 0.0
    count = len(time)
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18) * math.sqrt((1 + common) / (1 - common))
    reach = CONFIDENCE_Z * spread / 2
    last = len(slopes) - 1
    low = slopes[max(0, math.floor(last / 2 - reach))]
    high = slopes[min(last, math.ceil(last / 2 + reach))]
    return middle, float(low), float(high)


def _clean(time: ArrayLike, value: ArrayLike) -> tuple[Numbers, Numbers]:
    """Return finite readings in order of time."""
    when, what = np.asarray(time, dtype=np.float64).ravel(), np.asarray(value, dtype=np.float64).ravel()
    size = min(len(when), len(what))
    kept = np.isfinite(when[:size]) & np.isfinite(what[:size])
    when, what = when[:size][kept], what[:size][kept]
    order = np.argsort(when, kind="stable")
    return when[order], what[order]


def _blocks(when: Numbers, what: Numbers) -> tuple[Numbers, Numbers]:
    """Return time and lowest value of blocks of about equal size."""
    count = max(FEWEST, min(MOST_BLOCKS, len(when) // 2))
    edges = np.linspace(0, len(when), min(count, len(when)) + 1).astype(int)[:-1]
    sizes = np.diff([*edges, len(when)])
    return np.add.reduceat(when, edges) / sizes, np.minimum.reduceat(what, edges)


def _noise(floor: Numbers) -> float:
    """Return the standard deviation of a block's value around its neighbours', by median differences of three."""
    middle = floor[1:-1] - (floor[:-2] + floor[2:]) / 2
    return float(1.4826 * np.median(np.abs(middle)) / math.sqrt(1.5))


def _onset(time: Numbers, floor: Numbers) -> float:
    """Return when the growth began: the kink of two joined lines, if they fit clearly better than one line."""
    span = time[-1] - time[0]
    at = (time - time[0]) / span

    def misfit(columns: list[Numbers]) -> float:
        table = np.stack([np.ones_like(at), *columns], axis=1)
        solution = np.linalg.lstsq(table, floor, rcond=None)[0]
        return float(np.sum((floor - table @ solution) ** 2))

    straight = misfit([at])
    kinks = at[2:-5]
    fits = [misfit([at, np.maximum(0.0, at - kink)]) for kink in kinks]
    best = int(np.argmin(fits))
    if straight <= 0 or fits[best] > 0.5 * straight:
        return float(time[0])
    return float(time[0] + kinks[best] * span)
