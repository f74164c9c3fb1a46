"""The newest value of every metric, ready to be served: the watcher fills it, a scrape reads it."""

from __future__ import annotations

import time
from bisect import bisect_left
from math import inf
from typing import TYPE_CHECKING

from stepscope.core.names import clean
from stepscope.exporters.prometheus import exposition
from stepscope.exporters.prometheus.exposition import MetricFamily, Sample, label_set
from stepscope.exporters.prometheus.names import BUCKETS, DROPPED, DURATION, SERIES, STEPS, Names, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.core.vocabulary import Metric

TIMED = len(BUCKETS) + 4
"""Series of the steps of one rank: their number, and buckets, sum and count of their durations."""
LIMIT = 2000
"""Most series on one page: a bound on what hostile or careless names can cost."""
OWN_SHARE = 0.75
"""Share of the series that a program's own names may take, so that they cannot crowd out the built-in names."""
REMEMBERED = 1 << 16
"""Maximum series beyond the limit that are distinguished; further ones are not counted."""
FRESH_SECONDS = 120.0
"""Age at which a sample of the machine is left out: a lost GPU must not show its last temperature for ever."""


class _PageSeries:
    """One line of the page."""

    __slots__ = ("expires", "factor", "family", "labels", "moment", "value")

    def __init__(self, family: str, labels: str, factor: float, *, expires: bool) -> None:
        self.family, self.labels, self.factor, self.expires = family, labels, factor, expires
        self.value = self.moment = 0.0


class _RankPage:
    """One rank of one run, or the machine around it."""

    def __init__(self, run: str, rank: int, project: str) -> None:
        self.is_machine = rank < 0
        self.labels = {"run": run, "rank": f"node{-1 - rank}" if rank < 0 else str(rank), "project": clean(project)[0]}
        self.text = label_set(self.labels)
        self.places: dict[str, tuple[_PageSeries, ...]] = {}
        """The series of each name that has some; none for a name that is exposed elsewhere."""
        self.is_timed = False
        """Whether the page has its steps and their durations."""
        self.steps = 0
        self.counts = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0


class Board:
    """What Prometheus sees. Not for several threads at once: the one that drains also serves."""

    def __init__(
        self, metrics: Iterable[Metric] = (), *, limit: int = LIMIT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin with an empty page; samplers declare `metrics` beside the vocabulary."""
        self._names, self._limit, self._clock = Names(metrics), limit, clock
        self._sources: dict[tuple[str, int], _RankPage] = {}
        self._families: dict[str, tuple[Target, dict[str, _PageSeries]]] = {}
        """Each family with its series by their labels."""
        self._refused: set[int] = set()
        self.series = 0
        """Series that have a place on the page."""

    @property
    def dropped(self) -> int:
        """How many series there was no room for."""
        return len(self._refused)

    def update(
        self,
        run: str,
        rank: int,
        project: str,
        values: Mapping[str, float],
        steps: int = 0,
        step_seconds: Iterable[float] = (),
    ) -> None:
        """Take in the newest values of a rank, in base units, and the number and durations of the steps that ended.

        A rank below 0 is the machine, as in the watcher's own rows (-1 is node 0).
        """
        source = self._sources.get((run, rank)) or self._enter(run, rank, project)
        moment = self._clock()
        places = source.places
        for name, value in values.items():
            found = places.get(name)
            for series in self._place(source, name) if found is None else found:
                series.value = value * series.factor
                series.moment = moment
        source.steps += steps
        for seconds in step_seconds:
            if 0.0 <= seconds < inf:  # one NaN would make the sum NaN for ever
                source.counts[bisect_left(BUCKETS, seconds)] += 1
                source.seconds += seconds

    def forget(self, run: str, rank: int) -> None:
        """Remove a rank that has ended from the page."""
        source = self._sources.pop((run, rank), None)
        if source is None:
            return
        self.series -= TIMED if source.is_timed else 0
        for series in (series for found in source.places.values() for series in found):
            self.series -= 1
            shown = self._families[series.family][1]
            del shown[series.labels]
            if not shown:
                del self._families[series.family]

    def families(self) -> list[MetricFamily]:
        """Return the page as plain data, in order of names."""
        too_old = self._clock() - FRESH_SECONDS
        found = [
            _family(
                target,
                [
                    Sample(series.labels, series.value)
                    for series in shown.values()
                    if series.moment >= too_old or not series.expires
                ],
            )
            for target, shown in self._families.values()
        ]
        found += self._training()
        count = sum(len(family.samples) for family in found)
        found += [_family(SERIES, [Sample("", count)]), _family(DROPPED, [Sample("", self.dropped)])]
        return sorted(found, key=lambda family: family.name)

    def page(self, accept: str = "") -> tuple[str, bytes]:
        """Return content type and body for a scrape with this `Accept` header."""
        return exposition.page(self.families(), accept)

    def _training(self) -> list[MetricFamily]:
        trainers = [source for source in self._sources.values() if source.is_timed]
        steps = [Sample(source.text, source.steps) for source in trainers]
        durations = [
            sample
            for source in trainers
            if any(source.counts)  # a run that times no step has no durations of 0
            for sample in exposition.histogram(source.text, BUCKETS, source.counts, source.seconds)
        ]
        return [_family(STEPS, steps), _family(DURATION, durations)]

    def _enter(self, run: str, rank: int, project: str) -> _RankPage:
        source = _RankPage(run, rank, project)
        self._sources[run, rank] = source
        source.is_timed = not source.is_machine and self.series + TIMED <= self._limit
        if source.is_timed:
            self.series += TIMED
        elif not source.is_machine:
            self._refuse(source, STEPS.family)
            self._refuse(source, DURATION.family)
        return source

    def _place(self, source: _RankPage, name: str) -> tuple[_PageSeries, ...]:
        """Make the series of a name that is seen for the first time; none if the page is full."""
        if self.series >= self._limit:
            return self._refuse(source, name)
        targets = self._names.targets(name)
        if any(target.is_own for target in targets) and self.series >= self._limit * OWN_SHARE:
            return self._refuse(source, name)
        source.places[name] = tuple(self._add(source, name, target) for target in targets)
        return source.places[name]

    def _refuse(self, source: _RankPage, name: str) -> tuple[_PageSeries, ...]:
        if len(self._refused) < REMEMBERED:
            self._refused.add(hash((source.text, name)))
        return ()

    def _add(self, source: _RankPage, name: str, target: Target) -> _PageSeries:
        labels = label_set({**source.labels, **dict(target.labels)})
        if labels in self._families.get(target.family, (target, {}))[1]:  # another name, such as an alias, came first
            target = self._names.own(name)
            labels = label_set({**source.labels, **dict(target.labels)})
        series = _PageSeries(target.family, labels, target.factor, expires=source.is_machine)
        self._families.setdefault(target.family, (target, {}))[1][labels] = series
        self.series += 1
        return series


def _family(target: Target, samples: list[Sample]) -> MetricFamily:
    return MetricFamily(target.family, target.kind, target.help, samples)
