"""Recorded points as labelled series, for sinks that speak of families and labels: the names are those of a scrape."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core import vocabulary
from stepscope.core.names import clean
from stepscope.exporters.prometheus.exposition import COUNTER
from stepscope.exporters.prometheus.names import PREFIX, STEP_SECONDS, Names, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.exporters.sinks.sink import RunFacts
    from stepscope.store.points import Points

STEP = Target(f"{PREFIX}_{STEP_SECONDS}", "Duration of the step.")
"""A scrape shows the durations of steps as a histogram; here each of them is sent."""
_NO_NAME = re.compile(r"[^a-zA-Z0-9_:]")


@dataclass(frozen=True, eq=False)
class LabelledSeries:
    """One labelled series. It equals only itself, so that encoders can keep what they made of it."""

    name: str
    labels: tuple[tuple[str, str], ...]
    """With `__name__`, in the order of their names; none is empty."""
    help: str
    kind: str
    """gauge or counter."""
    unit: str
    """As in the vocabulary, such as `seconds`; empty for a pure number."""
    factor: float = 1.0
    """The recorded value times this is the value that is sent."""
    source: tuple[int, int] = (0, 0)
    """Rank and attempt of its points."""


class SeriesTable:
    """The series of a run that were seen so far, by number. A series keeps its number."""

    def __init__(self, prefix: str, common: Mapping[str, str]) -> None:
        """`prefix` goes before each name, the labels of `common` are on each series."""
        self._prefix, self._common = _NO_NAME.sub("_", prefix), dict(common)
        if self._prefix[:1].isdigit():
            self._prefix = f"_{self._prefix}"
        self._names = Names()
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._known: dict[tuple[tuple[str, str], ...], int] = {}
        self.all: list[LabelledSeries] = []
        self.factors = np.ones(0)
        """The factor of each series."""

    def numbers(self, points: Points) -> NDArray[np.int64]:
        """Return the number of each point's series."""
        if not len(points):
            return np.empty(0, np.int64)
        columns = np.stack([points.name, points.rank, points.attempt]).astype(np.int64)
        spans = np.ptp(columns, axis=1) + 1
        if int(np.prod(spans.astype(object))) < 2**62:
            low = columns - columns.min(axis=1, keepdims=True)
            key = (low[0] * spans[1] + low[1]) * spans[2] + low[2]
            _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        else:
            _, first, inverse = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        keys = [(points.names[code], rank, attempt) for code, rank, attempt in columns[:, first].T.tolist()]
        new = [key for key in keys if key not in self._numbers]
        # A canonical name gets its family before an alias does, so that the same batch always gives the same series.
        for key in sorted(new, key=lambda key: (key[0] in vocabulary.aliases, key)):
            self._numbers[key] = self._place(*key)
        found = np.fromiter((self._numbers[key] for key in keys), np.int64, len(keys))
        if len(self.factors) < len(self.all):
            self.factors = np.array([series.factor for series in self.all])
        return found[inverse.reshape(-1)]

    def values(self, numbers: NDArray[np.int64], points: Points) -> NDArray[np.float64]:
        """Return the values of points of these series, in the unit that their names say."""
        with np.errstate(over="ignore", invalid="ignore"):
            return points.value * self.factors[numbers]

    def add(self, target: Target, labels: Mapping[str, str], source: tuple[int, int] = (0, 0)) -> int:
        """Return the number of a series, which is made if it is new."""
        pairs = self._pairs(target, labels)
        if pairs not in self._known:
            unit = vocabulary.unit_of(target.family)
            self._known[pairs] = len(self.all)
            name = dict(pairs)["__name__"]
            self.all.append(LabelledSeries(name, pairs, target.help, target.kind, unit, target.factor, source))
        return self._known[pairs]

    def _pairs(self, target: Target, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        name = f"{self._prefix}{target.family}" + ("_total" if target.kind == COUNTER else "")
        given = {**self._common, **labels, **dict(target.labels), "__name__": name}
        return tuple(sorted((label, value) for label, value in given.items() if value))

    def _place(self, name: str, rank: int, attempt: int) -> int:
        """Give a recorded name its series; if another name has that already, one of its own, as a scrape does."""
        labels = {"rank": f"node{-1 - rank}" if rank < 0 else str(rank), "attempt": str(attempt) if attempt else ""}
        target = _target(self._names, name)
        if self._pairs(target, labels) in self._known:
            target = self._names.own(name)
        return self.add(target, labels, (rank, attempt))


def _target(names: Names, name: str) -> Target:
    """Return the first target of a recorded name."""
    found = names.targets(name)
    if found:
        return found[0]
    alias = vocabulary.aliases.get(name)
    return STEP._replace(factor=alias.factor if alias else 1.0)


def run_labels(run: RunFacts) -> dict[str, str]:
    """Return the labels that tell the series of one run from those of others."""
    return {"run": run.id, "project": clean(run.project)[0]}
