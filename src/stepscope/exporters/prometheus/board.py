"""The newest value of every metric, ready to be served: the watcher fills it, a scrape reads it."""

from __future__ import annotations

import time
from bisect import bisect_left
from math import inf
from typing import TYPE_CHECKING

from stepscope.core.names import clean
from stepscope.exporters.prometheus import exposition
from stepscope.exporters.prometheus.exposition import Family, Sample, label_set
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
"""Age at which a sample of the machine is absent: a GPU that was lost must not show its last temperature for ever."""


class _Series:
    """One line of the page."""

    __slots__ = ("factor", "labels", "moment", "value")

    def __init__(self, labels: str, factor: float) -> None:
        self.labels, self.factor = labels, factor
        self.value = self.moment = 0.0


class _Shown:
    """A family with its series, by their labels."""

    __slots__ = ("help", "kind", "series")

    def __init__(self, target: Target) -> None:
        self.kind, self.help = target.kind, target.help
        self.series: dict[str, _Series] = {}


class _Source:
    """One rank of one run, or the machine around it."""

    def __init__(self, run: str, rank: int, project: str) -> None:
        self.is_machine = rank < 0
        self.labels = {"run": run, "rank": f"node{-1 - rank}" if rank < 0 else str(rank), "project": clean(project)[0]}
        self.text = label_set(self.labels)
        self.places: dict[str, tuple[_Series, ...]] = {}
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
        """Begin with an empty page.

        Args:
            metrics: what samplers declare, beside the vocabulary.
            limit: series at most; further ones are left out and counted.
            clock: seconds, of any fixed start.
        """
        self._names, self._limit, self._clock = Names(metrics), limit, clock
        self._sources: dict[tuple[str, int], _Source] = {}
        self._families: dict[str, _Shown] = {}
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
        """Take in what one rank has recorded since the last call.

        Args:
            run: id of the run.
            rank: of the trainer; below 0 the machine, as the watcher's own rows have it (-1 is node 0).
            project: of the run.
            values: newest value of each metric, in its base unit.
            steps: that ended since.
            step_seconds: how long each of them took.
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
        """Take a rank off the page, for it has ended."""
        source = self._sources.pop((run, rank), None)
        if source is None:
            return
        gone = {id(series) for found in source.places.values() for series in found}
        self.series -= len(gone) + (TIMED if source.is_timed else 0)
        for name, shown in list(self._families.items()):
            shown.series = {labels: series for labels, series in shown.series.items() if id(series) not in gone}
            if not shown.series:
                del self._families[name]

    def families(self) -> list[Family]:
        """Return the page as plain data, in order of names."""
        too_old = self._clock() - FRESH_SECONDS
        machine = {
            id(series)
            for source in self._sources.values()
            if source.is_machine
            for found in source.places.values()
            for series in found
        }
        found = [
            Family(
                name,
                shown.kind,
                shown.help,
                [
                    Sample(series.labels, series.value)
                    for series in shown.series.values()
                    if series.moment >= too_old or id(series) not in machine
                ],
            )
            for name, shown in self._families.items()
        ]
        found += self._training()
        shown = sum(len(family.samples) for family in found)
        return sorted([*found, *self._own(shown)], key=lambda family: family.name)

    def page(self, accept: str = "") -> tuple[str, bytes]:
        """Return content type and body for a scrape with this `Accept` header."""
        return exposition.page(self.families(), accept)

    def _training(self) -> list[Family]:
        """Return steps and their durations, of every rank."""
        trainers = [source for source in self._sources.values() if source.is_timed]
        steps = [Sample(source.text, source.steps) for source in trainers]
        durations = [
            sample
            for source in trainers
            if any(source.counts)  # a run that times no step has no durations of 0
            for sample in exposition.histogram(source.text, BUCKETS, source.counts, source.seconds)
        ]
        return [
            Family(STEPS.family, STEPS.kind, STEPS.help, steps),
            Family(DURATION.family, DURATION.kind, DURATION.help, durations),
        ]

    def _own(self, shown: int) -> list[Family]:
        return [
            Family(SERIES.family, SERIES.kind, SERIES.help, [Sample("", shown)]),
            Family(DROPPED.family, DROPPED.kind, DROPPED.help, [Sample("", self.dropped)]),
        ]

    def _enter(self, run: str, rank: int, project: str) -> _Source:
        source = _Source(run, rank, project)
        self._sources[run, rank] = source
        source.is_timed = not source.is_machine and self.series + TIMED <= self._limit
        if source.is_timed:
            self.series += TIMED
        elif not source.is_machine:
            self._refuse(source, STEPS.family)
            self._refuse(source, DURATION.family)
        return source

    def _place(self, source: _Source, name: str) -> tuple[_Series, ...]:
        """Make the series of a name that is seen for the first time; none if the page is full."""
        if self.series >= self._limit:
            return self._refuse(source, name)
        targets = self._names.targets(name)
        is_own = any(label == "metric" for target in targets for label, _ in target.labels)
        if is_own and self.series >= self._limit * OWN_SHARE:
            return self._refuse(source, name)
        source.places[name] = tuple(self._add(source, name, target) for target in targets)
        return source.places[name]

    def _refuse(self, source: _Source, name: str) -> tuple[_Series, ...]:
        if len(self._refused) < REMEMBERED:
            self._refused.add(hash((source.text, name)))
        return ()

    def _add(self, source: _Source, name: str, target: Target) -> _Series:
        labels = label_set({**source.labels, **dict(target.labels)})
        if labels in self._of(target).series:  # another name, such as an alias, was here first
            target = self._names.own(name)
            labels = label_set({**source.labels, **dict(target.labels)})
        series = _Series(labels, target.factor)
        self._of(target).series[labels] = series
        self.series += 1
        return series

    def _of(self, target: Target) -> _Shown:
        shown = self._families.get(target.family)
        if shown is None:
            shown = self._families[target.family] = _Shown(target)
        return shown
