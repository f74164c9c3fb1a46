"""Points with their own sequence numbers, as in Stepscope's exports: kept by name, within limits, unchanged."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.core.names import clean
from stepscope.importers.imported import ImportedSeries
from stepscope.importers.notes import Notes
from stepscope.importers.points import MOST_NAMES, MOST_POINTS

if TYPE_CHECKING:
    from collections.abc import Sequence

_TYPES = "iiqqdd"


class Row(NamedTuple):
    """One point: time in seconds since 1970, NaN if unknown."""

    name: str
    rank: int
    attempt: int
    seq: int
    step: int
    time: float
    value: float


class Numbered(Notes):
    """The points read so far, and notes on what was left out."""

    def __init__(self) -> None:
        super().__init__()
        self._columns: dict[str, list[array[int] | array[float]]] = {}
        self._left = MOST_POINTS

    def add(self, row: Row) -> None:
        """Add one point, unless there are too many already; raises ValueError or OverflowError for an invalid one."""
        if not -(2**31) <= row.rank < 2**31 or not 0 <= row.attempt < 2**31 or not row.name:
            raise ValueError("rank, attempt or name")
        columns = self._columns.get(row.name)
        if columns is None:
            columns = [array(kind) for kind in _TYPES]
            if len(self._columns) < MOST_NAMES:
                self._columns[row.name] = columns
            else:
                self._left = 0
        if self._left <= 0:
            self.note("points beyond the limit, left out")
            return
        checked = array("q", (row.seq, row.step))  # raises before anything is added
        self._left -= 1
        for column, value in zip(columns, (row.rank, row.attempt, *checked, row.time, row.value), strict=True):
            column.append(value)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Delete all points."""
        self._columns.clear()
        self._left = MOST_POINTS

    def series(self) -> dict[str, ImportedSeries]:
        """Return the points by name; names are cleaned as a recorder's are."""
        found: dict[str, ImportedSeries] = {}
        for source, columns in self._columns.items():
            name, _ = clean(source)
            if name in found:
                self.note(f"a second metric that reads {name}, left out")
                continue
            found[name] = _series(name, columns)
        return found


def _series(name: str, columns: Sequence[array[int] | array[float]]) -> ImportedSeries:
    rank, attempt, seq, step, time, value = columns
    return ImportedSeries(
        name,
        np.array(step, np.int64),
        np.array(time, np.float64),
        np.array(value, np.float64),
        np.array(rank, np.int32),
        np.array(attempt, np.int32),
        np.array(seq, np.int64),
    )
