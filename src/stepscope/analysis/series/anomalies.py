"""Anomalies in a series: a plain z-score, and a robust detector that uses the history.

The robust one calls a point an anomaly if nothing like it has been seen: its value, the mean of the last few points,
that of more of them, or its jump from them lies beyond all but a few of the last thousands, by a share of their spread.
What comes back, such as an evaluation every thousand steps or a daily wave, has been seen and is none; neither is a
trend, which leaves the range of the past a little at a time. Each point is judged by the points before it. While the
series is young, its points are judged by those before and after, and only single values: the start of a training is no
anomaly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.finding import Facts
from stepscope.analysis.series.rolling import EarlierValues, mean_until, quantile_before, quantiles_before

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from stepscope.core.arrays import Floats, Mask


VALUE, LEVEL, LONG, JUMP = "value", "level", "long level", "jump"
"""What stands out: the point, the mean of the last points, of many more, or the difference from their median."""

PLAIN_LIMIT = 2.0
"""Standard deviations beyond which the plain z-score calls a point an anomaly."""
FEWEST = 30
"""Fewest points to judge."""
YOUNG = 300
"""Points of a series that are judged by both sides: earlier, the daily waves of nab-subset's no-anomaly files have not
come back."""
APART = 20
"""Points between a young point and those after it that it is judged by: a burst is no witness of itself."""
MEMORY = 4000
"""Points before that a point is judged by. This and what follows was chosen on half the files of nab-subset."""
NEAR = 10
"""How many times as long as the new points their past must be."""
SHORT = 20
"""Points that a level is the mean of, and a jump is measured from."""
LONG_POINTS = 300
"""Points that a long level is the mean of: a wave that stays up, or a day without one, has only values that were there
before. It is judged once the series has had three times as many."""
EXTREME = 0.998
"""Share of the past below its upper end, and above its lower."""
RANGE_SHARE = 0.5
"""Spread at least, as a share of the distance from the middle to the end: bursts of the past make it wide."""
LEAST_SPREAD = 1e-3
"""Spread at least, relative to the ends: a past that never moved would make an anomaly of a rounding."""
BEYOND = {VALUE: 0.35, LEVEL: 0.2, LONG: 0.2, JUMP: 0.5}
"""Spreads beyond the ends of the past where a score of 1 is reached."""
DOUBT = 1000
"""Past points with which that is doubled; with more it falls to once: the ends of a short past are not sure."""
PATIENCE, LONG_WATCH = 0.5, 20_000
"""Growth of that per tenfold number of points beyond so many: false alarms must not grow with the length."""
RETURNS, LIKE, LAST = 3, 0.8, 50
"""Times among the last so many after which something that comes again, at least so far out, is known and not told."""
REST = 60
"""Usual points that end an anomaly; what stands out earlier belongs to it."""


@dataclass(frozen=True)
class Anomaly:
    """A span that stands out. Indices are those of the series as it was given."""

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
    """The usual value before the peak."""
    score: float
    """1 is the least."""


@dataclass(frozen=True)
class Anomalies(Facts):
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
    """Find the anomalies of a series in its order.

    Args:
        value: the values; those that are not finite are left out.
        threshold: smallest score to report. A higher threshold finds fewer.
    """
    given = np.asarray(value, dtype=np.float64).ravel()
    place = np.flatnonzero(np.isfinite(given))
    count = len(place)
    if count < FEWEST:
        return Anomalies(f"not enough data: {count} points, of which {FEWEST} are needed", count)
    values, scale = _scaled(given[place])
    views = _views(values)
    score = np.max([view.score for view in views.values()], axis=0)
    found: list[Anomaly] = []
    for first, last in stretches(score >= threshold, REST):
        peak = first + int(np.argmax(score[first : last + 1]))
        kind = max(views, key=lambda name: float(views[name].score[peak]))
        low, high = (float(end) * scale for end in views[kind].past.before(peak)[[0, -1]])
        start, end, top = (int(place[at]) for at in (first, last, peak))
        found.append(Anomaly(start, end, top, kind, float(given[top]), low, high, float(score[peak])))
    news = tuple(each for number, each in enumerate(found) if not _known(each, found[max(0, number - LAST) : number]))
    return Anomalies(f"{len(news)} anomalies in {count} points", count, news)


def newest(value: ArrayLike, count: int, seen: int | None = None) -> Anomaly | None:
    """Judge the newest points by those before them; return the one that stands out most, regardless of its score.

    A cheap check for following a series as it grows: values and levels as in `anomalies`, but no jumps, and all new
    points are judged by the same past. Of many new points only the first are judged, a tenth as many as the past has:
    later points may have drifted away from it.

    Args:
        value: the values; those that are not finite are left out.
        count: how many at the end are new.
        seen: points that the series has had in all; the number of values if omitted.
    """
    given = np.asarray(value, dtype=np.float64).ravel()
    place = np.flatnonzero(np.isfinite(given))
    fresh = int(np.count_nonzero(place >= len(given) - count))
    if not fresh or len(place) - fresh < YOUNG:
        return None
    values, scale = _scaled(given[place])
    found = None
    for kind, series in ((VALUE, values), (LEVEL, mean_until(values, SHORT))):
        begin = len(values) - fresh
        past = np.sort(series[:begin][-MEMORY:])
        judged = min(fresh, max(1, begin // NEAR))
        ends = [past[round(share * (len(past) - 1))] for share in (1 - EXTREME, 0.1, 0.9, EXTREME)]
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
    """Return whether similar values came several times recently, so that there is nothing new to report."""
    return _known(one, earlier[-LAST:])


def _known(one: Anomaly, earlier: list[Anomaly]) -> bool:
    """Return whether the like has come several times: on the same side, and about as far out or further."""
    like = 0
    for other in earlier:
        above = one.value >= other.high
        edge = other.high if above else other.low
        like += above == (other.value >= other.high) and abs(other.value - edge) >= LIKE * abs(one.value - edge)
    return like >= RETURNS


def scores(value: ArrayLike) -> Floats:
    """Return how far each point stands out, as `anomalies` sees it: 1 is an anomaly. NaN where not finite."""
    given = np.asarray(value, dtype=np.float64).ravel()
    kept = np.isfinite(given)
    found = np.full(len(given), np.nan)
    if np.count_nonzero(kept) >= FEWEST:
        found[kept] = np.max([view.score for view in _views(_scaled(given[kept])[0]).values()], axis=0)
    return found


def stretches(flags: Mask, rest: int) -> list[tuple[int, int]]:
    """Return first and last of each span of flagged points with at most `rest` others between."""
    at = np.flatnonzero(flags)
    if not len(at):
        return []
    breaks = np.flatnonzero(np.diff(at) > rest)
    firsts, lasts = np.append(at[0], at[breaks + 1]), np.append(at[breaks], at[-1])
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


@dataclass(frozen=True)
class _View:
    """One way to look at the points: how far each stands out in it, and what was usual before."""

    score: Floats
    past: EarlierValues


def _scaled(values: Floats) -> tuple[Floats, float]:
    """Return values of at most 1 and their unit, so that nothing overflows."""
    scale = float(np.abs(values).max()) or 1.0
    return values / scale, scale


def _views(values: Floats) -> dict[str, _View]:
    """Look at the values, their level and their jumps; at the values of both sides only while they are young."""
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
    backwards = _past(young[::-1])
    later = EarlierValues(backwards.table, np.maximum(0, len(young) - 1 - APART - np.arange(len(young))))
    first = views[VALUE].score[: len(young)]
    first[:] = np.minimum(first, _beyond(young, later, BEYOND[VALUE]))
    first[:SHORT] = 0.0
    for kind, first_judged in ((LEVEL, YOUNG), (LONG, 3 * LONG_POINTS), (JUMP, YOUNG)):
        views[kind].score[:first_judged] = 0.0
    return views


def _view(values: Floats, beyond: float, *, signed: bool = False) -> _View:
    """Judge each value by those before it; signed values around 0 by those of their sign."""
    past = _past(values)
    return _View(_beyond(values, past, beyond, signed=signed), past)


def _past(values: Floats) -> EarlierValues:
    """Return low end, lower and upper part, and high end of the values before each."""
    return quantiles_before(values, MEMORY, (1 - EXTREME, 0.1, 0.9, EXTREME))


def _beyond(
    values: Floats, past: EarlierValues, beyond: float, *, signed: bool = False, seen: float | None = None
) -> Floats:
    """Return how far each value lies beyond the ends of others, relative to their spread; 0 inside.

    `seen` is how many points the series has had by now; a value is the n-th of these if omitted.
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
    score[outside] = out / (spread * beyond * _caution(number))
    return score


def _caution(seen: Floats) -> Floats:
    """Return by how much more a point must stand out that is the n-th: in a short past, and in a long watch."""
    long = np.log10(np.maximum(1.0, seen / LONG_WATCH))
    return np.asarray(1 + DOUBT / np.maximum(seen, YOUNG) + PATIENCE * long)
