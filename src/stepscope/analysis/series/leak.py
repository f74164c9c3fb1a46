"""Does memory leak? Tell lasting growth from warm-up, caches that fill, single jumps and sawtooth.

Two kinds of evidence count. The *lasting level* is the value below which the series never fell again: a garbage
collector's sawtooth or a larger batch lifts a reading and lets go of it, so the lasting level stays; a leak lifts it
again and again. Growth is reported where it rose in nearly every part of a span, about evenly, and still does. Where
noise hides that (batches of many lengths), a *line* must rise beyond chance and explain the readings better than one
jump and than a rise that has ended. `python -m bench leaks` measures both on real series.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.finding import Facts
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats


GROWTH, SETTLING, JUMP, STEADY, UNKNOWN = "growth", "settling", "jump", "steady", "unknown"
"""It leaks; it rose and levelled off; it rose at once and stayed; it is steady; too little data."""

FEWEST = 12
"""Fewest measurements to judge."""
MOST_BLOCKS = 120
"""Blocks that a long series is reduced to; the lowest value of each stands for it."""
STARTS = (0.0, 0.25, 0.5, 0.75)
"""Where a span may begin, as a share of the time: growth may follow a warm-up, or come late."""
PARTS = 6
"""Equal spans that a span is cut into to see whether growth is spread over it."""
ABOVE_NOISE = 3.0
"""Standard deviations of a block's value that the lasting level must rise by; a line is sought below that."""
FEWEST_STAIRS, STAIR, TREAD, UNFLAT, UNEVEN = 5, 0.05, 3, 0.1, 2.0
"""Stairs that make growth; the share of the rise that each has; the blocks between two, and by which share of a stair
the level may change there; how many usual times may lie between two or after the last: records of a peak, which are no
leak, come more and more rarely."""
EARLIER = (1, 2, 3)
"""How far back to compare the rate of a late span, in its own length: one that falls will go on falling."""
END_SHARE = 0.1
"""Share of a span at its end that is not judged: it is unknown yet whether memory is let go again."""
CONFIDENCE_Z = 1.96
"""Standard normal quantile of the 95 % interval."""
CERTAIN = 3.3
"""Standard errors that the slope of a line must be above 0: 1 in 500 series of 20 readings of noise. In so many of real
fine-tuning, with a noise of 1.2 %, it still finds a growth of 5 %."""
SURE_Z = 2.33
"""Quantile for Sen's interval of the same slope, which outliers do not sway: it, too, must be above 0."""
LATEST_END = 0.75
"""Share of a span after which nobody can say that a rise has ended."""
SLOWING = (0.1, 0.2, 0.4, 0.8)
"""Time constants, as shares of a span, of rises that get slower: by 71 % until the end, for the last one."""
FREEDOM_LINE, FREEDOM_JUMP, FREEDOM_END = 2, 4, 4
"""Parameters that a line, a jump and a rise that ended are charged with; to search for the place counts as two."""
MOST_COMMON = 0.5
"""Correlation of neighbours beyond which a line says nothing: a random walk, too, looks like one."""
SHORTEST = 1e-9
"""Time between two readings that counts as zero; of all the time, for a slope."""
LARGEST = 1e100
"""A number beyond this is no reading: its square would leave the floats."""
LEAST_BYTES = 8 * 2**20
"""Rise that is worth a word, in bytes."""
LATER_REST = 0.2
"""Share of the rise by which readings may leave a line that begins later: more would hide the end of a warm-up."""
REGULAR_RISE, REGULAR_REST = 5e-6, 0.01
"""A smaller one is, too, if it is this share of the level with every reading, and the readings leave the line by less
than this share of the rise: half of 1 % in 1 000 steps, seen in 25 steps of an allocator that counts exactly."""


@dataclass(frozen=True)
class MemoryTrend(Facts):
    """The behaviour of a series of memory readings. Rates are values per unit of the caller's time."""

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


def assess(time: ArrayLike, value: ArrayLike, *, limit: float | None = None, least: float = LEAST_BYTES) -> MemoryTrend:
    """Judge a series of memory readings that were taken at comparable moments.

    Args:
        time: when each was taken: seconds, or steps. Any order.
        value: the readings; those that are not finite, or beyond LARGEST, are left out.
        limit: where memory ends, in the same unit; None if unknown.
        least: rise below which nothing is called growth.
    """
    when, what = _clean(time, value)
    if len(when) < FEWEST or when[-1] - when[0] < SHORTEST:
        return MemoryTrend(UNKNOWN, f"{len(when)} readings, of which {FEWEST} at different times are needed", len(when))
    level = float(np.median(what[-max(3, len(what) // 20) :]))
    time_of, floor = _blocks(when, what)
    whole = _Stretch.of(time_of, floor, least)
    for start in STARTS:
        moment = when[0] + start * (when[-1] - when[0])
        first = int(np.searchsorted(time_of, moment)) if start else 0
        before = time_of[:first], floor[:first]
        found = []
        if len(floor) - first >= FEWEST - 2:
            found.append(_Stretch.of(time_of[first:], floor[first:], least))
        later = when >= moment
        if int(later.sum()) >= FEWEST:
            found.append(_line(when[later], what[later], least, math.inf if not start else LATER_REST))
        for stretch in found:
            if stretch.after(*before).verdict == GROWTH:
                return _growth(stretch, (when, what), level, limit)
    return MemoryTrend(whole.verdict, whole.reason, len(when), level)


@dataclass(frozen=True)
class _Stretch:
    """A span of the series: its blocks, and what the lasting level does in it."""

    time: Floats
    floor: Floats
    verdict: str
    reason: str
    risen: float = 0.0

    @classmethod
    def of(cls, time: Floats, floor: Floats, least: float) -> _Stretch:
        """Judge one span."""
        lasting = np.minimum.accumulate(floor[::-1])[::-1]
        end = time[-1] - END_SHARE * (time[-1] - time[0])
        edges = np.interp(np.linspace(time[0], end, PARTS + 1), time, lasting)
        rises = np.diff(edges)
        risen = float(edges[-1] - edges[0])
        noise = _noise(floor)
        small = f"the lasting level rose by {risen:.4g}, within the noise or too little"
        if risen < max(least, ABOVE_NOISE * noise, 1e-4 * abs(float(np.median(floor)))):
            return cls(time, floor, STEADY, small)
        grew = rises > 0.1 * risen / PARTS
        largest = float(np.max(np.diff(lasting[time <= end], prepend=edges[0]))) / risen
        text = f"the lasting level rose by {risen:.4g} in {int(grew.sum())} of {PARTS} equal spans"
        early, late = float(rises[: PARTS // 2].sum()), float(rises[PARTS // 2 :].sum())
        fades = late < 0.6 * early or not (grew[-1] or grew[-2])
        spread = int(grew.sum()) >= PARTS - 1 and float(rises.max()) <= 0.5 * risen
        if largest <= 0.4 and not fades and spread:
            return cls(time, floor, GROWTH, f"{text}, and goes on", risen)
        stairs = _stairs(time[time <= end], floor[time <= end], lasting[time <= end])
        if largest <= 0.4 and stairs:
            return cls(time, floor, GROWTH, f"the lasting level rose by {risen:.4g} in {stairs} even stairs", risen)
        if risen < 4 * noise:
            return cls(time, floor, STEADY, small)
        if largest > 0.4:
            return cls(time, floor, JUMP, f"{text}, {format_share(largest)} of it at once", risen)
        if fades:
            return cls(time, floor, SETTLING, f"{text}, less and less", risen)
        return cls(time, floor, STEADY, f"{text}, which is not steady growth", risen)

    def after(self, time: Floats, floor: Floats) -> _Stretch:
        """Return the span beside what was before it: a sawtooth's last tooth or a warm-up's end is no growth."""
        if self.verdict != GROWTH or len(time) < 3:
            return self
        if float(np.median(self.floor[-3:])) <= float(np.quantile(floor, 0.95)):
            return replace(self, verdict=STEADY, reason=f"{self.reason}, but it was as high before and fell again")
        span = self.time[-1] - self.time[0]
        own = _rate(self.time, self.floor)
        for spans in EARLIER if self.time[0] - time[0] > span / 2 else ():
            before = time >= self.time[0] - spans * span
            if own < 0.6 * _rate(time[before], floor[before]):
                return replace(self, verdict=SETTLING, reason=f"{self.reason}, but more slowly than before")
        return self


def _stairs(time: Floats, floor: Floats, lasting: Floats) -> int:
    """Return how many stairs a level rises in, if it is flat between them, and they come evenly and go on; else 0.

    So an allocator that takes memory in large blocks shows a leak that is much finer.
    """
    heights = np.diff(lasting)
    at = np.flatnonzero(heights > STAIR * (lasting[-1] - lasting[0]))
    if len(at) < FEWEST_STAIRS or int(np.median(np.diff(at))) < TREAD:
        return 0
    flat = np.abs(np.delete(np.diff(floor), at))
    if float(np.quantile(flat, 0.95)) > UNFLAT * float(np.median(heights[at])):
        return 0
    apart = np.diff(time[at + 1])
    usual, since = float(np.median(apart)), float(time[-1] - time[at[-1] + 1])
    return len(at) if max(float(apart.max()), since) <= UNEVEN * usual else 0


def _line(when: Floats, what: Floats, least: float, most_rest: float) -> _Stretch:
    """Judge a span by the line through its readings: growth, or steady if there is no such line.

    They may leave the line by `most_rest` of its rise.
    """
    time, value = _middles(when, what)
    nothing = _Stretch(time, value, STEADY, "no line rises through the readings beyond chance")
    if len(time) < FEWEST or time[-1] - time[0] < SHORTEST:
        return nothing
    slope, low, _ = theil_sen(time, value, SURE_Z)
    rest = value - slope * time
    rest = rest - np.median(rest)
    rise = slope * float(time[-1] - time[0])
    little = REGULAR_RISE * len(what) * abs(float(np.median(value)))
    regular = 0 < little <= rise and _spread(rest) <= REGULAR_REST * rise
    if low <= 0 or not (rise >= least or regular) or _spread(rest) > most_rest * rise:
        return nothing
    reach = 3 * _spread(rest)
    tamed = slope * time + (np.clip(rest, -reach, reach) if reach > 0 else rest)
    if not _is_certain(time, tamed) or not _is_line(time, tamed):
        return nothing
    reason = f"the readings rose by {rise:.4g} along a line, beyond chance, and no jump or end of it fits as well"
    return _Stretch(time, value, GROWTH, reason, rise)


def _is_certain(time: Floats, value: Floats) -> bool:
    """Return whether a line rises by more than its standard error allows, widened for correlated neighbours."""
    away, height = time - time.mean(), value - value.mean()
    power = float(away @ away)
    slope = float(away @ height) / power
    rest = height - slope * away
    common = _common(rest)
    error = math.sqrt(float(rest @ rest) / (len(time) - 2) / power * (1 + common) / (1 - common))
    return slope > CERTAIN * error and common <= MOST_COMMON


def _is_line(time: Floats, value: Floats) -> bool:
    """Return whether a line fits better than one jump, and than a rise that ended (by Schwarz's BIC)."""
    count = len(time)
    at = (time - time[0]) / (time[-1] - time[0])
    places = np.arange(2, count - 1)
    jumps = (np.arange(count) >= places[:, None]).astype(np.float64)
    ended = np.minimum(at, at[places][at[places] <= LATEST_END][:, None])
    slower = 1 - np.exp(-at / np.array(SLOWING)[:, None])
    smallest = count * (1e-9 * float(np.max(np.abs(value)))) ** 2 + np.finfo(float).tiny

    def charge(shapes: Floats, freedom: int) -> float:
        left = float(np.min(_misfit(shapes, value), initial=np.inf))
        return count * math.log(max(smallest, left)) + freedom * math.log(count)

    others = charge(jumps, FREEDOM_JUMP), charge(np.concatenate([ended, slower]), FREEDOM_END)
    return charge(at[None, :], FREEDOM_LINE) < min(others)


def _misfit(shapes: Floats, value: Floats) -> Floats:
    """Return, for each shape (a row), the squares that are left when it is fitted to values with any offset, size."""
    shapes = shapes - shapes.mean(axis=1, keepdims=True)
    value = value - value.mean()
    along, own = shapes @ value, np.einsum("ij,ij->i", shapes, shapes)
    share = np.divide(along**2, own, out=np.zeros_like(own), where=own > 0)
    left: Floats = np.maximum(0.0, float(value @ value) - share)
    return left


def _spread(rest: Floats) -> float:
    """Return the standard deviation of residuals as their median size has it."""
    return float(1.4826 * np.median(np.abs(rest)))


def _common(rest: Floats) -> float:
    """Return what residuals have in common with the next one: their correlation, from 0 to 0.9."""
    power = float(np.dot(rest, rest))
    return min(0.9, max(0.0, float(np.dot(rest[1:], rest[:-1])) / power)) if power > 0 else 0.0


def _rate(time: Floats, floor: Floats) -> float:
    """Return the slope between the first and the last third of some blocks; 0 if there are too few."""
    third = len(time) // 3
    if third < 1:
        return 0.0
    rise = float(np.median(floor[-third:]) - np.median(floor[:third]))
    return rise / float(np.mean(time[-third:]) - np.mean(time[:third]))


def _growth(stretch: _Stretch, readings: tuple[Floats, Floats], level: float, limit: float | None) -> MemoryTrend:
    """Return how fast a span grows, since when, and how long that can go on."""
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
    return MemoryTrend(
        GROWTH, stretch.reason, len(when), level, rate, low, high, since, stretch.risen, left, left_low, left_high
    )


def theil_sen(time: Floats, value: Floats, quantile: float = CONFIDENCE_Z) -> tuple[float, float, float]:
    """Return the median slope of all pairs and its interval (Sen's, widened for what neighbours have in common).

    Args:
        time: at least two different moments.
        value: a value at each.
        quantile: of the standard normal distribution; 1.96 makes it the 95 % interval.
    """
    first, second = np.triu_indices(len(time), 1)
    span = time[second] - time[first]
    apart = span > SHORTEST * (time[-1] - time[0])
    slopes = np.sort((value[second][apart] - value[first][apart]) / span[apart])
    middle = float(np.median(slopes))
    rest = value - middle * time
    common = _common(rest - np.median(rest))
    count = len(time)
    spread = math.sqrt(count * (count - 1) * (2 * count + 5) / 18) * math.sqrt((1 + common) / (1 - common))
    reach = quantile * spread / 2
    last = len(slopes) - 1
    low = slopes[max(0, math.floor(last / 2 - reach))]
    high = slopes[min(last, math.ceil(last / 2 + reach))]
    return middle, float(low), float(high)


def _clean(time: ArrayLike, value: ArrayLike) -> tuple[Floats, Floats]:
    """Return finite readings in order of time."""
    when, what = np.asarray(time, dtype=np.float64).ravel(), np.asarray(value, dtype=np.float64).ravel()
    size = min(len(when), len(what))
    with np.errstate(invalid="ignore"):
        kept = (np.abs(when[:size]) <= LARGEST) & (np.abs(what[:size]) <= LARGEST)
    when, what = when[:size][kept], what[:size][kept]
    order = np.argsort(when, kind="stable")
    return when[order], what[order]


def _blocks(when: Floats, what: Floats) -> tuple[Floats, Floats]:
    """Return time and lowest value of blocks of about equal size."""
    count = max(FEWEST, min(MOST_BLOCKS, len(when) // 2))
    edges = np.linspace(0, len(when), min(count, len(when)) + 1).astype(int)[:-1]
    sizes = np.diff([*edges, len(when)])
    return np.add.reduceat(when, edges) / sizes, np.minimum.reduceat(what, edges)


def _middles(when: Floats, what: Floats) -> tuple[Floats, Floats]:
    """Return mean time and median value of blocks of about equal size, five or more; each reading where few."""
    if len(when) <= MOST_BLOCKS:
        return when, what
    parts = np.array_split(np.arange(len(when)), min(MOST_BLOCKS, len(when) // 5))
    return np.array([when[part].mean() for part in parts]), np.array([np.median(what[part]) for part in parts])


def _noise(floor: Floats) -> float:
    """Return the standard deviation of a block's value around its neighbours', by median differences of three."""
    middle = floor[1:-1] - (floor[:-2] + floor[2:]) / 2
    return float(1.4826 * np.median(np.abs(middle)) / math.sqrt(1.5))


def _onset(time: Floats, floor: Floats) -> float:
    """Return when the growth began: the kink of two joined lines, if they fit clearly better than one line."""
    span = time[-1] - time[0]
    at = (time - time[0]) / span

    def misfit(columns: list[Floats]) -> float:
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
