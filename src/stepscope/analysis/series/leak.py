"""Does memory leak? Separates lasting growth from warm-up, caches that fill up, single jumps and sawtooth.

There are two kinds of evidence. The *lasting level* is the value below which the series never falls again: garbage
collection or one larger batch raises a reading only for a while, but a leak raises the lasting level again and again.
It must rise in nearly every part of a span, about evenly, and still be rising. Where noise hides that (batches of
different lengths), a *line* must rise beyond chance and fit better than one jump and than a rise that has ended.
`python -m bench leaks` measures both on real series.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.finding import WithFacts
from stepscope.analysis.series.robust import finite_pairs, neighbour_correlation, spread, theil_sen
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats


GROWTH, SETTLING, JUMP, STEADY, UNKNOWN = "growth", "settling", "jump", "steady", "unknown"
"""The verdicts: it leaks; it rose and levelled off; it rose at once and stayed; it is steady; there is too little
data."""

FEWEST = 12
"""Minimum number of readings."""
MOST_BLOCKS = 120
"""A longer series is reduced to this many blocks; each is represented by its lowest value."""
STARTS = (0.0, 0.25, 0.5, 0.75)
"""Where a span may begin, as shares of the time: growth may follow a warm-up or begin late."""
PARTS = 6
"""A span is cut into this many equal parts, to see whether it grows in all of them."""
ABOVE_NOISE = 3.0
"""Minimum rise of the lasting level, in standard deviations of a block; smaller rises need a line."""
FEWEST_STAIRS, STAIR, TREAD, UNFLAT, UNEVEN = 5, 0.05, 3, 0.1, 2.0
"""Growth in stairs: minimum number of stairs; share of the rise in each; blocks between two; change of the level
between stairs, as a share of a stair; and the longest pause between or after stairs, in median pauses. New records of a
peak, which are no leak, come at longer and longer intervals."""
EARLIER = (1, 2, 3)
"""A late span is compared with the time before it, this many of its own lengths back: growth that slows down will
end."""
END_SHARE = 0.1
"""Share of a span at its end that is not judged: the memory may still be released."""
CERTAIN = 3.3
"""Standard errors by which the slope of a line must exceed 0. Noise gets there in 1 of 500 series of 20 readings;
growth of 5 % is found in 20 readings of a real fine-tuning with a noise of 1.2 %."""
SURE_Z = 2.33
"""Quantile for Sen's interval of the same slope, which outliers do not move: its lower end must be above 0, too."""
LATEST_END = 0.75
"""Share of a span after which it is unknown whether a rise has ended."""
SLOWING = (0.1, 0.2, 0.4, 0.8)
"""Time constants, as shares of a span, of rises that slow down; with the last one the rate falls by 71 % until the
end."""
FREEDOM_LINE, FREEDOM_JUMP, FREEDOM_END = 2, 4, 4
"""Parameters counted for a line, a jump and a rise that ended; the search for the place counts as two."""
MOST_COMMON = 0.5
"""Correlation of neighbouring residuals above which a line proves nothing: a random walk looks like one, too."""
SHORTEST = 1e-9
"""Total time that counts as zero."""
LARGEST = 1e100
"""Larger numbers are not readings: their squares would overflow."""
LEAST_BYTES = 8 * 2**20
"""Minimum rise to report, in bytes."""
LATER_REST = 0.2
"""Maximum spread around a line that begins late, as a share of its rise: with more, the end of a warm-up looks like
one."""
REGULAR_RISE, REGULAR_REST = 5e-6, 0.01
"""A smaller rise counts, too, if it is at least this share of the level per reading, and the readings are closer to the
line than this share of the rise: 0.5 % in 1 000 steps is found in 25 steps of an allocator that counts exactly."""


@dataclass(frozen=True)
class MemoryTrend(WithFacts):
    """The behaviour of a series of memory readings. Rates are values per unit of the caller's time."""

    verdict: str
    """growth, settling, jump, steady or unknown."""
    reason: str
    """The evidence, in one sentence."""
    points: int = 0
    """Finite readings."""
    level: float | None = None
    """The newest level: the median of the last readings."""
    rate: float | None = None
    """Growth per unit of time since `since`: the median slope of all pairs (Theil-Sen)."""
    rate_low: float | None = None
    rate_high: float | None = None
    """95 % interval of the rate."""
    since: float | None = None
    """When the growth began."""
    risen: float | None = None
    """By how much the lasting level rose since then."""
    left: float | None = None
    """Time until the highest of the last readings reaches the limit; None without growth or limit."""
    left_low: float | None = None
    left_high: float | None = None
    """95 % interval of `left`; `left_high` is None if the rate may also be zero."""

    @property
    def growing(self) -> bool:
        """Whether this is a leak."""
        return self.verdict == GROWTH


def assess(time: ArrayLike, value: ArrayLike, *, limit: float | None = None, least: float = LEAST_BYTES) -> MemoryTrend:
    """Judge a series of memory readings that were taken at comparable times.

    Args:
        time: of each reading, in seconds or steps, in any order.
        value: the readings; non-finite ones are ignored.
        limit: where memory ends, in the unit of the readings; None if unknown.
        least: minimum rise that counts as growth.
    """
    when, what = finite_pairs(time, value, LARGEST)
    if len(when) < FEWEST or when[-1] - when[0] < SHORTEST:
        return MemoryTrend(UNKNOWN, f"{len(when)} readings, of which {FEWEST} at different times are needed", len(when))
    level = float(np.median(what[-max(3, len(what) // 20) :]))
    time_of, floor = _blocks(when, what)
    whole = _Span.of(time_of, floor, least)
    for start in STARTS:
        moment = when[0] + start * (when[-1] - when[0])
        first = int(np.searchsorted(time_of, moment)) if start else 0
        before = time_of[:first], floor[:first]
        found = []
        if len(floor) - first >= FEWEST - 2:
            found.append(_Span.of(time_of[first:], floor[first:], least))
        later = when >= moment
        if int(later.sum()) >= FEWEST:
            found.append(_line(when[later], what[later], least, math.inf if not start else LATER_REST))
        for span in found:
            if span.after(*before).verdict == GROWTH:
                return _growth(span, what, level, limit)
    return MemoryTrend(whole.verdict, whole.reason, len(when), level)


@dataclass(frozen=True)
class _Span:
    """A part of the series that may begin late: its blocks, and what the lasting level does in it."""

    time: Floats
    floor: Floats
    verdict: str
    reason: str
    risen: float = 0.0

    @classmethod
    def of(cls, time: Floats, floor: Floats, least: float) -> _Span:
        """Judge one span."""
        lasting = np.minimum.accumulate(floor[::-1])[::-1]
        end = time[-1] - END_SHARE * (time[-1] - time[0])
        edges = np.interp(np.linspace(time[0], end, PARTS + 1), time, lasting)
        rises = np.diff(edges)
        risen = float(edges[-1] - edges[0])
        noise = spread(floor[1:-1] - (floor[:-2] + floor[2:]) / 2) / math.sqrt(1.5)
        small = f"the lasting level rose by {risen:.4g}, within the noise or too little"
        if risen < max(least, ABOVE_NOISE * noise, 1e-4 * abs(float(np.median(floor)))):
            return cls(time, floor, STEADY, small)
        grew = rises > 0.1 * risen / PARTS
        largest = float(np.max(np.diff(lasting[time <= end], prepend=edges[0]))) / risen
        text = f"the lasting level rose by {risen:.4g} in {int(grew.sum())} of {PARTS} equal spans"
        early, late = float(rises[: PARTS // 2].sum()), float(rises[PARTS // 2 :].sum())
        fades = late < 0.6 * early or not (grew[-1] or grew[-2])
        throughout = int(grew.sum()) >= PARTS - 1 and float(rises.max()) <= 0.5 * risen
        if largest <= 0.4 and not fades and throughout:
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

    def after(self, time: Floats, floor: Floats) -> _Span:
        """Return it judged with the blocks before: the last tooth of a sawtooth or a warm-up's end is no growth."""
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
    """Return in how many stairs a level rises if it is flat between them, and they are regular and continue; else 0.

    This is how a small leak looks through an allocator that takes memory in large blocks.
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


def _line(when: Floats, what: Floats, least: float, most_rest: float) -> _Span:
    """Fit a line to a span: growth if it rises for certain and the readings are within `most_rest` of its rise."""
    time, value = when, what
    if len(when) > MOST_BLOCKS:
        parts = np.array_split(np.arange(len(when)), min(MOST_BLOCKS, len(when) // 5))
        time = np.array([when[part].mean() for part in parts])
        value = np.array([np.median(what[part]) for part in parts])
    nothing = _Span(time, value, STEADY, "no line rises through the readings beyond chance")
    if len(time) < FEWEST or time[-1] - time[0] < SHORTEST:
        return nothing
    slope, low, _ = theil_sen(time, value, SURE_Z)
    rest = value - slope * time
    rest = rest - np.median(rest)
    rise = slope * float(time[-1] - time[0])
    little = REGULAR_RISE * len(what) * abs(float(np.median(value)))
    noise = spread(rest)
    regular = 0 < little <= rise and noise <= REGULAR_REST * rise
    if low <= 0 or not (rise >= least or regular) or noise > most_rest * rise:
        return nothing
    clipped = slope * time + (np.clip(rest, -3 * noise, 3 * noise) if noise > 0 else rest)
    if not _is_certain(time, clipped) or not _is_line(time, clipped):
        return nothing
    reason = f"the readings rose by {rise:.4g} along a line, beyond chance, and no jump or end of it fits as well"
    return _Span(time, value, GROWTH, reason, rise)


def _is_certain(time: Floats, value: Floats) -> bool:
    """Return whether a line rises for certain, given its standard error, which is widened for correlated residuals."""
    away, height = time - time.mean(), value - value.mean()
    power = float(away @ away)
    slope = float(away @ height) / power
    rest = height - slope * away
    common = neighbour_correlation(rest)
    error = math.sqrt(float(rest @ rest) / (len(time) - 2) / power * (1 + common) / (1 - common))
    return slope > CERTAIN * error and common <= MOST_COMMON


def _is_line(time: Floats, value: Floats) -> bool:
    """Return whether a line fits better than a jump, and than a rise that ended or slows down (by Schwarz's BIC)."""
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
    """Return the squared residuals of each shape (a row) when it is fitted with its best offset and size."""
    shapes = shapes - shapes.mean(axis=1, keepdims=True)
    value = value - value.mean()
    along, own = shapes @ value, np.einsum("ij,ij->i", shapes, shapes)
    share = np.divide(along**2, own, out=np.zeros_like(own), where=own > 0)
    left: Floats = np.maximum(0.0, float(value @ value) - share)
    return left


def _rate(time: Floats, floor: Floats) -> float:
    """Return the slope between the first and the last third of some blocks; 0 if there are too few."""
    third = len(time) // 3
    if third < 1:
        return 0.0
    rise = float(np.median(floor[-third:]) - np.median(floor[:third]))
    return rise / float(np.mean(time[-third:]) - np.mean(time[:third]))


def _growth(span: _Span, what: Floats, level: float, limit: float | None) -> MemoryTrend:
    """Return how fast a span grows, since when, and the time left until the limit."""
    since = _onset(span.time, span.floor)
    grown = span.time >= since
    if int(grown.sum()) < FEWEST:
        grown = np.ones(len(span.time), dtype=bool)
        since = float(span.time[0])
    rate, low, high = theil_sen(span.time[grown], span.floor[grown])
    left = left_low = left_high = None
    if limit is not None and rate > 0:
        room = max(0.0, limit - float(np.max(what[-max(3, len(what) // 10) :])))
        left, left_low, left_high = room / rate, room / high, room / low if low > 0 else None
    return MemoryTrend(
        GROWTH, span.reason, len(what), level, rate, low, high, since, span.risen, left, left_low, left_high
    )


def _blocks(when: Floats, what: Floats) -> tuple[Floats, Floats]:
    """Return the mean time and the lowest value of blocks of about equal size."""
    count = max(FEWEST, min(MOST_BLOCKS, len(when) // 2))
    edges = np.linspace(0, len(when), min(count, len(when)) + 1).astype(int)[:-1]
    sizes = np.diff([*edges, len(when)])
    return np.add.reduceat(when, edges) / sizes, np.minimum.reduceat(what, edges)


def _onset(time: Floats, floor: Floats) -> float:
    """Return when the growth began: the kink of two joined lines, if they fit clearly better than one line."""
    span = time[-1] - time[0]
    at = (time - time[0]) / span

    def misfit(columns: list[Floats]) -> float:
        table = np.stack([np.ones_like(at), *columns], axis=1)
        solution = np.linalg.lstsq(table, floor, rcond=None)[0]
        return float(np.sum((floor - table @ solution) ** 2))

    straight, kinks = misfit([at]), at[2:-5]
    fits = [misfit([at, np.maximum(0.0, at - kink)]) for kink in kinks]
    best = int(np.argmin(fits))
    kinked = straight > 0 and fits[best] <= 0.5 * straight
    return float(time[0] + kinks[best] * span) if kinked else float(time[0])
