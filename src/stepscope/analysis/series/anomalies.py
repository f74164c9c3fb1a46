"""Anomalies in a series: a plain z-score, and a robust detector that compares each point with its history.

The robust detector reports a point if nothing like it has been seen: its value, the mean of the last few or of many
points, or its jump lies outside almost all of the last thousands, by a share of their spread. What recurs, such as an
evaluation every thousand steps or a daily wave, has been seen; a trend leaves the range of the past only little by
little. Neither is an anomaly. The first points of a series are compared with those before and after them, and only by
their values: the start of a training is no anomaly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.analysis.finding import WithFacts
from stepscope.analysis.series.robust import finite
from stepscope.analysis.series.rolling import EarlierValues, mean_until, quantile_before, quantiles_before

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats, Mask


VALUE, LEVEL, LONG, JUMP = "value", "level", "long level", "jump"
"""What stands out: the point, the mean of the last points, the mean of many more, or the difference from their
median."""

PLAIN_LIMIT = 2.0
"""The plain z-score reports points beyond this many standard deviations."""
FEWEST = 30
"""Minimum number of points."""
YOUNG = 300
"""The first points, which are compared with both sides: the daily waves of nab-subset's files have not come back
yet."""
APART = 20
"""Distance of a young point from the later points it is compared with, so that a burst does not confirm itself."""
MEMORY = 4000
"""Previous points that a point is compared with. This and the constants below were chosen on half the files of
nab-subset."""
NEAR = 10
"""The past must be this many times as long as the new points."""
SHORT = 20
"""A level is the mean of this many points; a jump is measured from their median."""
LONG_POINTS = 300
"""A long level is the mean of this many points: a wave that stays up, or a day without one, has only values that were
seen before. It is judged once the series has three times as many points."""
QUANTILES = (1 - 0.998, 0.1, 0.9, 0.998)
"""The low end of the past, its lower and upper part, and its high end."""
RANGE_SHARE = 0.5
"""Minimum spread, as a share of the range of the past, which bursts widen."""
LEAST_SPREAD = 1e-3
"""Minimum spread, relative to the ends of the past: otherwise a rounding error after a constant past is an anomaly."""
BEYOND = {VALUE: 0.35, LEVEL: 0.2, LONG: 0.2, JUMP: 0.5}
"""Distance beyond the ends of the past, in spreads, that gives a score of 1."""
DOUBT = 1000
"""Past points at which that distance is doubled, because the ends of a short past are uncertain; it falls as more
come."""
PATIENCE, LONG_WATCH = 0.5, 20_000
"""That distance grows by this share for every tenfold length beyond so many points, to limit false alarms."""
RETURNS, LIKE, LAST = 3, 0.8, 50
"""An anomaly is known, and not reported, if so many of the last 50 were at least 0.8 times as far out on the same
side."""
REST = 60
"""An anomaly ends after this many usual points."""


@dataclass(frozen=True)
class Anomaly:
    """A span that stands out. Indices refer to the given series."""

    index: int
    """First point."""
    end: int
    """Last point."""
    peak: int
    """Point that stands out most."""
    kind: str
    """value, level, long level or jump."""
    value: float
    """Value at the peak."""
    low: float
    high: float
    """The usual range before the peak."""
    score: float
    """1 is the minimum."""


@dataclass(frozen=True)
class Anomalies(WithFacts):
    """The anomalies of a series."""

    reason: str
    """The evidence, or what is missing, in one sentence."""
    points: int = 0
    """Finite points."""
    anomalies: tuple[Anomaly, ...] = ()

    @property
    def indices(self) -> list[int]:
        """Return where each begins."""
        return [each.index for each in self.anomalies]


def z_scores(value: ArrayLike) -> Floats:
    """Return each point's distance from the mean in standard deviations; 0 for a constant, NaN where not finite."""
    given = np.asarray(value, dtype=np.float64).ravel()
    kept = np.isfinite(given)
    found = np.full(len(given), np.nan)
    if kept.any():
        values = given[kept] / (float(np.abs(given[kept]).max()) or 1.0)
        width = float(np.std(values))
        level = bool(np.all(values == values[0]))
        found[kept] = 0.0 if level or width == 0 else (values - np.mean(values)) / width
    return found


def plain(value: ArrayLike, limit: float = PLAIN_LIMIT) -> list[int]:
    """Return the points whose plain z-score is beyond the limit: of a falling loss the start, see `anomalies`."""
    with np.errstate(invalid="ignore"):
        return [int(at) for at in np.flatnonzero(np.abs(z_scores(value)) > limit)]


def anomalies(value: ArrayLike, *, threshold: float = 1.0) -> Anomalies:
    """Find the anomalies of a series, in its order; non-finite values are ignored. A higher threshold finds fewer."""
    given, place = finite(value)
    count = len(place)
    if count < FEWEST:
        return Anomalies(f"not enough data: {count} points, of which {FEWEST} are needed", count)
    values, scale = _scaled(given[place])
    views = _views(values)
    score = np.max([view.score for view in views.values()], axis=0)
    found: list[Anomaly] = []
    for first, last in spans(score >= threshold, REST):
        peak = first + int(np.argmax(score[first : last + 1]))
        kind = max(views, key=lambda name: float(views[name].score[peak]))
        low, high = (float(end) * scale for end in views[kind].past.before(peak)[[0, -1]])
        start, end, top = (int(place[at]) for at in (first, last, peak))
        found.append(Anomaly(start, end, top, kind, float(given[top]), low, high, float(score[peak])))
    new = tuple(each for number, each in enumerate(found) if not is_known(each, found[:number]))
    return Anomalies(f"{len(new)} anomalies in {count} points", count, new)


def newest(value: ArrayLike, count: int, seen: int | None = None) -> Anomaly | None:
    """Compare the newest points with those before them; return the one that stands out most, whatever its score.

    A cheap check for following a series as it grows: the last `count` values are new, and it has had `seen` points in
    all (the number of values if omitted). It looks at values and levels, not at jumps, and compares all new points with
    the same past. Of many new points only the first are judged, a tenth as many as the past has, because later points
    may have drifted away from it.
    """
    given, place = finite(value)
    fresh = int(np.count_nonzero(place >= len(given) - count))
    if not fresh or len(place) - fresh < YOUNG:
        return None
    values, scale = _scaled(given[place])
    found = None
    for kind, series in ((VALUE, values), (LEVEL, mean_until(values, SHORT))):
        begin = len(values) - fresh
        past = np.sort(series[:begin][-MEMORY:])
        judged = min(fresh, max(1, begin // NEAR))
        ends = [past[round(share * (len(past) - 1))] for share in QUANTILES]
        table = EarlierValues(np.repeat(np.array(ends)[:, None], judged, axis=1), np.arange(judged))
        number = float(seen if seen is not None else len(values))
        score = _beyond(series[begin : begin + judged], table, BEYOND[kind], seen=number)
        peak = int(np.argmax(score))
        if found is None or score[peak] > found.score:
            at = int(place[begin + peak])
            low, high = (float(end) * scale for end in (ends[0], ends[-1]))
            found = Anomaly(at, at, at, kind, float(series[begin + peak]) * scale, low, high, float(score[peak]))
    return found


def is_known(one: Anomaly, earlier: list[Anomaly]) -> bool:
    """Return whether similar ones came several times recently: on the same side, and about as far out or farther."""
    similar = 0
    for other in earlier[-LAST:]:
        above = one.value >= other.high
        edge = other.high if above else other.low
        similar += above == (other.value >= other.high) and abs(other.value - edge) >= LIKE * abs(one.value - edge)
    return similar >= RETURNS


def spans(flags: Mask, rest: int) -> list[tuple[int, int]]:
    """Return the first and last index of each run of flagged points with at most `rest` others in between."""
    at = np.flatnonzero(flags)
    if not len(at):
        return []
    breaks = np.flatnonzero(np.diff(at) > rest)
    firsts, lasts = np.append(at[0], at[breaks + 1]), np.append(at[breaks], at[-1])
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


class _View(NamedTuple):
    """The points under one aspect: how far each stands out, and the values before it."""

    score: Floats
    past: EarlierValues


def _scaled(values: Floats) -> tuple[Floats, float]:
    """Return the values in units of the largest, and that unit, so that nothing overflows."""
    scale = float(np.abs(values).max()) or 1.0
    return values / scale, scale


def _views(values: Floats) -> dict[str, _View]:
    """Return the view of the values, levels and jumps; the first points are judged by both sides, by value only."""
    middle = quantile_before(values, SHORT, 0.5)
    middle[0] = values[0]
    long = mean_until(values, LONG_POINTS)
    long[: LONG_POINTS - 1] = long[min(LONG_POINTS, len(long)) - 1]  # means of fewer points reach further
    views = {
        VALUE: _view(values, BEYOND[VALUE]),
        LEVEL: _view(mean_until(values, SHORT), BEYOND[LEVEL]),
        LONG: _view(long, BEYOND[LONG]),
        JUMP: _view(values - middle, BEYOND[JUMP], signed=True),
    }
    young = values[:YOUNG]
    backwards = quantiles_before(young[::-1], MEMORY, QUANTILES)
    later = EarlierValues(backwards.table, np.maximum(0, len(young) - 1 - APART - np.arange(len(young))))
    first = views[VALUE].score[: len(young)]
    first[:] = np.minimum(first, _beyond(young, later, BEYOND[VALUE]))
    first[:SHORT] = 0.0
    for kind, first_judged in ((LEVEL, YOUNG), (LONG, 3 * LONG_POINTS), (JUMP, YOUNG)):
        views[kind].score[:first_judged] = 0.0
    return views


def _view(values: Floats, beyond: float, *, signed: bool = False) -> _View:
    """Judge each value by those before it; signed values around 0 by those of the same sign."""
    past = quantiles_before(values, MEMORY, QUANTILES)
    return _View(_beyond(values, past, beyond, signed=signed), past)


def _beyond(
    values: Floats, past: EarlierValues, beyond: float, *, signed: bool = False, seen: float | None = None
) -> Floats:
    """Return how far each value lies outside the past, relative to its spread; 0 inside.

    `seen` is the number of points the series has had by now; if omitted, the n-th value is the n-th point.
    """
    score = np.zeros(len(values))
    outside = np.flatnonzero((values < past.row(0)) | (values > past.row(-1)))
    low, lower, upper, high = past.before(outside)
    least = LEAST_SPREAD * np.maximum(np.abs(low), np.abs(high)) + 1e-300
    above = values[outside] > high
    span = 2 * np.abs(np.where(above, high, low)) if signed else high - low
    spread = np.maximum(np.maximum(upper - lower, RANGE_SHARE * span), least)
    out = np.where(above, values[outside] - high, low - values[outside])
    number = outside.astype(np.float64) + 1 if seen is None else np.full(len(outside), float(seen))
    # After a short past, and in a series that is watched for long, a point must stand out more.
    caution = 1 + DOUBT / np.maximum(number, YOUNG) + PATIENCE * np.log10(np.maximum(1.0, number / LONG_WATCH))
    score[outside] = out / (spread * beyond * caution)
    return score
