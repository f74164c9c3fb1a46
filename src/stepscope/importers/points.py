"""Points read from a foreign file, within limits, and the run that they form."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.redact import jsonable, redact
from stepscope.core.ring import NO_STEP
from stepscope.importers.imported import Imported, ImportedSeries
from stepscope.importers.notes import Notes
from stepscope.importers.words import canonical_names, clean

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_POINTS = 20_000_000
"""Maximum points of one file; the rest is left out and counted. Each takes 32 bytes."""
MOST_NAMES = 20_000
"""Maximum metrics of one file."""


@dataclass(slots=True)
class Column:
    """The points of one metric during reading."""

    step: array[int] = field(default_factory=lambda: array("q"))
    time: array[float] = field(default_factory=lambda: array("d"))
    value: array[float] = field(default_factory=lambda: array("d"))
    rank: array[int] = field(default_factory=lambda: array("i"))
    attempt: array[int] = field(default_factory=lambda: array("i"))

    def series(self, name: str) -> ImportedSeries:
        """Return the points as arrays."""
        return ImportedSeries(
            name,
            np.array(self.step, np.int64),
            np.array(self.time, np.float64),
            np.array(self.value, np.float64),
            np.array(self.rank, np.int32),
            np.array(self.attempt, np.int32),
        )


class Points(Notes):
    """The content read from one file: points by name, and notes on what was left out."""

    def __init__(self, most_points: int = MOST_POINTS, most_names: int = MOST_NAMES) -> None:
        super().__init__()
        self.columns: dict[str, Column] = {}
        self._left = most_points
        self._names_left = most_names

    def __len__(self) -> int:
        """Return the number of points kept."""
        return sum(len(column.value) for column in self.columns.values())

    def add(
        self, name: str, value: float, step: int = NO_STEP, time: float = math.nan, rank: int = 0, attempt: int = 0
    ) -> None:
        """Add one point, unless there are too many already."""
        column = self.columns.get(name) or self._column(name)
        if column is None or self._left <= 0:
            self.note("points beyond the limit, left out")
            return
        self._left -= 1
        column.step.append(step)
        column.time.append(time)
        column.value.append(value)
        column.rank.append(rank)
        column.attempt.append(attempt)

    def _column(self, name: str) -> Column | None:
        if self._names_left <= 0:
            return None
        self._names_left -= 1
        return self.columns.setdefault(name, Column())

    def imported(self, path: str, form: str, facts: Mapping[str, Any] | None = None) -> Imported:
        """Return the run, with canonical names where they are certain, and facts without secrets.

        `facts["names"]` has the source's name of each renamed metric.
        """
        known = canonical_names(self.columns)
        series: dict[str, ImportedSeries] = {}
        for source, name in known.items():
            shown = clean(name)
            if shown in series:
                self.note(f"a second metric that reads {shown}, left out")
            else:
                series[shown] = self.columns[source].series(shown)
        renamed = {name: clean(source) for source, name in known.items() if source != name}
        told = redact(jsonable(dict(facts or {})))
        return Imported(path, form, series, told | ({"names": renamed} if renamed else {}), self.notes())
