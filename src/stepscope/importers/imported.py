"""Series recorded by another tool, in the same form as those of our own runs."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.vocabulary import canonical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

COLUMNS = {"step": np.int64, "time": np.float64, "value": np.float64, "rank": np.int32, "attempt": np.int32}
"""The arrays of a series in their order; `seq` follows if there is one."""


@dataclass(frozen=True, slots=True)
class ImportedSeries:
    """The points of one metric, in recorded order; the same attributes as a run's own series."""

    name: str
    step: NDArray[np.int64]
    """Step; `NO_STEP` if the source has none."""
    time: NDArray[np.float64]
    """Seconds since 1970 UTC; since the start of the run if the source says no more; NaN if it has none."""
    value: NDArray[np.float64]
    rank: NDArray[np.int32]
    attempt: NDArray[np.int32]
    seq: NDArray[np.int64] | None = None
    """Sequence within its rank and attempt, if the source is an export of ours; None: use the order."""

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.value)


@dataclass(frozen=True)
class Imported:
    """One run of another tool."""

    path: str
    """The file or folder it was read from."""
    format: str
    """Name of the source's format, such as `tfevents`."""
    columns: dict[str, ImportedSeries]
    facts: dict[str, Any] = field(default_factory=dict)
    """Other facts in the source: configuration, hardware, versions."""
    notes: tuple[str, ...] = ()
    """What could not be read, or was left out, and why."""
    key: str = ""
    """Tells it from the other runs of its file, such as its id there; empty if it is the only one."""

    def names(self) -> list[str]:
        """Return the names of its metrics, in order."""
        return sorted(self.columns)

    def series(self, name: str) -> ImportedSeries:
        """Return one metric by its name, a documented alias or its source's name; an empty series if it is missing."""
        renamed = self.facts.get("names")
        sources = renamed.items() if isinstance(renamed, dict) else ()
        spellings = (name, canonical(name), *(ours for ours, source in sources if source == name))
        found = next((self.columns[each] for each in spellings if each in self.columns), None)
        return found if found is not None else series_of(name, [], [])


def joined(runs: Sequence[Imported]) -> Imported:
    """Return the files of one run as one: their series one after the other, and the notes with their file's name."""
    parts: dict[str, list[ImportedSeries]] = defaultdict(list)
    for run in runs:
        for name, series in run.columns.items():
            parts[name].append(series)
    columns = {
        name: ImportedSeries(name, *(np.concatenate([getattr(one, column) for one in some]) for column in COLUMNS))
        for name, some in parts.items()
    }
    notes = tuple(f"{os.path.basename(run.path)}: {note}" for run in runs for note in run.notes)
    return replace(runs[0], columns=columns, notes=notes)


def series_of(name: str, step: Any, value: Any, time: Any = None, rank: int = 0, attempt: int = 0) -> ImportedSeries:
    """Return a series from sequences of equal length; without `time` all times are NaN."""
    steps = np.asarray(step, np.int64)
    times = np.full(len(steps), np.nan) if time is None else np.asarray(time, np.float64)
    same = np.full(len(steps), rank, np.int32), np.full(len(steps), attempt, np.int32)
    return ImportedSeries(name, steps, times, np.asarray(value, np.float64), *same)
