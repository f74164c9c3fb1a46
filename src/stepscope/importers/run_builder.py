"""Build a run from a file in a foreign format: points by name within limits, facts, and notes on what was left out."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.core import names
from stepscope.core.redact import jsonable, redact
from stepscope.core.ring import NO_STEP
from stepscope.importers.imported import Imported, ImportedSeries
from stepscope.importers.source import FileHead, unreadable
from stepscope.importers.words import canonical_name, canonical_names, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from numpy.typing import NDArray

MOST_POINTS = 20_000_000
"""Maximum points of one file; the rest is left out and counted. Each takes 32 bytes, 40 with a sequence number."""
MOST_NAMES = 20_000
"""Maximum metrics of one file."""
NAMES_SHOWN, MOST_NOTED = 8, 1000
"""Maximum names in a note, and maximum names that are counted separately for it."""
TEXT, NO_NUMBER = "text", "lists, switches, media and deeper objects"


class PointColumns(NamedTuple):
    """The points of one metric while its file is read."""

    step: array[int]
    time: array[float]
    value: array[float]
    rank: array[int]
    attempt: array[int]
    seq: array[int]
    """Empty unless the source numbers its points."""

    def series(self, name: str) -> ImportedSeries:
        """Return the points as arrays."""
        step, time, value, rank, attempt, seq = map(np.array, self)
        return ImportedSeries(name, step, time, value, rank, attempt, seq if len(seq) else None)


class RunBuilder:
    """The content of one file during reading."""

    def __init__(self, most_points: int = MOST_POINTS, most_names: int = MOST_NAMES) -> None:
        self.columns: dict[str, PointColumns] = {}
        self.facts: dict[str, Any] = {}
        """Other facts in the source: configuration, hardware, versions."""
        self._most, self._left, self._most_names = most_points, most_points, most_names
        self._given: dict[str, str] = {}
        """What the metrics that `take` has handed over are called."""
        self._notes: Counter[str] = Counter()
        self._left_out: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(
        self,
        name: str,
        value: float,
        step: int | None = None,
        time: float = math.nan,
        rank: int = 0,
        attempt: int = 0,
        seq: int | None = None,
    ) -> None:
        """Add one point, unless there are too many already; time in seconds since 1970."""
        columns = self._columns_of(name)
        if columns is None or self._left <= 0:
            self.note("points beyond the limit, left out")
            return
        self._left -= 1
        columns.step.append(NO_STEP if step is None else step)
        columns.time.append(time)
        columns.value.append(value)
        columns.rank.append(rank)
        columns.attempt.append(attempt)
        if seq is not None:
            columns.seq.append(seq)

    def extend(
        self,
        name: str,
        value: NDArray[np.float64],
        step: NDArray[np.int64],
        time: NDArray[np.float64],
        rank: int = 0,
        attempt: int = 0,
    ) -> None:
        """Add many points of one metric at once, as `add` does one; a step may be NO_STEP."""
        columns = self._columns_of(name)
        kept = 0 if columns is None else max(0, min(self._left, len(value)))
        if kept < len(value):
            self._notes["points beyond the limit, left out"] += len(value) - kept
        if columns is None or not kept:
            return
        self._left -= kept
        columns.step.frombytes(np.ascontiguousarray(step[:kept], np.int64).data.cast("B"))
        columns.time.frombytes(np.ascontiguousarray(time[:kept], np.float64).data.cast("B"))
        columns.value.frombytes(np.ascontiguousarray(value[:kept], np.float64).data.cast("B"))
        columns.rank.extend(array("i", (rank,)) * kept)
        columns.attempt.extend(array("i", (attempt,)) * kept)

    def _columns_of(self, name: str) -> PointColumns | None:
        columns = self.columns.get(name)
        if columns is None and len(self.columns) < self._most_names:
            columns = PointColumns(array("q"), array("d"), array("d"), array("i"), array("i"), array("q"))
            self.columns[name] = columns
        return columns

    def note(self, text: str) -> None:
        """Add a note for people; repeated ones are counted."""
        self._notes[text] += 1

    def leave_out(self, what: str, name: str, count: int = 1) -> None:
        """Count values that are not kept: the reason, as the start of a sentence, and the source's name for them."""
        found = self._left_out[what]
        found[name if name in found or len(found) < MOST_NOTED else "…"] += count

    def not_a_number(self, name: str, value: Any) -> None:
        """Count a value that is left out because it is not a number."""
        self.leave_out(TEXT if isinstance(value, str) else NO_NUMBER, name)

    def imported(self, path: str, form: str, *, is_ours: bool = False, key: str = "") -> Imported:
        """Return the run, with canonical names where they are certain, and facts without secrets.

        `facts["names"]` has the source's name of each renamed metric. In an export of ours names stay as they are.
        `key` tells the runs of one file apart.
        """
        known = dict(zip(self.columns, self.columns, strict=True)) if is_ours else canonical_names(self.columns)
        series: dict[str, ImportedSeries] = {}
        for source, name in known.items():
            shown = names.clean(name)[0] if is_ours else clean(name)
            if shown in series:
                self.note(f"a second metric that reads {shown}, left out")
            else:
                series[shown] = self.columns[source].series(shown)
        renamed = {name: clean(source) for source, name in known.items() if source != name}
        facts = redact(jsonable(self.facts)) | ({"names": renamed} if renamed else {})
        return Imported(path, form, series, facts, self._told(), key)

    def take(self, path: str, form: str, *, is_ours: bool = False, key: str = "") -> Imported:
        """Return what was added since the last call as a run, and forget its points; a metric keeps its first name."""
        taken = set(self._given.values())
        for source in self.columns:
            if source not in self._given:
                shown = names.clean(source)[0] if is_ours else clean(canonical_name(source, taken))
                if shown in taken:
                    self.note(f"a second metric that reads {shown}, left out")
                self._given[source] = "" if shown in taken else shown
                taken.add(shown)
        series = {}
        for source, columns in self.columns.items():
            if len(columns.value) and self._given[source]:
                series[self._given[source]] = columns.series(self._given[source])
            for column in columns:
                del column[:]
        self._left = self._most
        renamed = {name: clean(source) for source, name in self._given.items() if name and source != name}
        facts = redact(jsonable(self.facts)) | ({"names": renamed} if renamed else {})
        return Imported(path, form, series, facts, self._told(), key)

    def _told(self) -> tuple[str, ...]:
        """Return the notes, and what was left out."""
        notes = [text if count == 1 else f"{text} ({count} times)" for text, count in self._notes.items()]
        return (*notes, *(_listed(*each) for each in self._left_out.items()))


class RunBuilders:
    """The runs of one file or folder during reading; each has a key, such as its id, by which its rows find it."""

    def __init__(self) -> None:
        self.by_key: dict[str, RunBuilder] = {}
        self.notes: dict[str, None] = {}
        """What could not be read of the whole, in order."""

    def of(self, key: str) -> RunBuilder:
        """Return the run with this key; a new one at first sight."""
        found = self.by_key.get(key)
        if found is None:
            found = self.by_key[key] = RunBuilder()
        return found

    def note(self, text: str) -> None:
        """Add a note on the whole file or folder."""
        self.notes[text] = None


@dataclass(frozen=True)
class ImportFormat:
    """One per module; `formats.FORMATS` lists them."""

    name: str
    help: str
    recognises: Callable[[FileHead], bool] = lambda _head: False
    """Judges the start of a file."""
    fill: Callable[[str, RunBuilder], None] | None = None
    """Reads the file at a path into a builder."""
    empty: tuple[str, str] | None = None
    """Cause and remedy of the error for a file without a point; None: it is an empty run."""
    unite: Callable[[Sequence[Imported]], list[Imported]] = list
    """Merges the files of a folder that belong to one run: event files, checkpoints."""
    is_ours: bool = False
    """Whether Stepscope wrote it: names then stay as they are."""
    part_of: Callable[[str], str] = lambda path: path
    """What the paths of all files of one run have in common, such as their folder."""
    ordered_by: Callable[[str], str] = lambda path: path
    """What orders the paths of all files of one run by time; numbers in it count as numbers."""
    repeats: bool = False
    """Whether each file of a run repeats the ones before it, so that the latest has it all."""
    reads_on: bool = True
    """Whether the reader goes on when a file that it has read to its end grows; else a changed file is read again."""
    fill_all: Callable[[str, RunBuilders], None] | None = None
    """Reads a file or folder with any number of runs; instead of `fill`."""
    owns_folder: Callable[[str, Collection[str]], bool] = lambda _folder, _names: False
    """Whether a folder, by its path and the names in it, is one thing of this format: nothing else in it is read."""

    def read(self, path: str) -> Imported:
        """Return the first run in a file or folder: the only one of most formats."""
        return self.read_all(path)[0]

    def read_all(self, path: str) -> list[Imported]:
        """Return the runs in a file or folder, ordered by key; notes on the whole are the first run's."""
        runs = RunBuilders()
        if self.fill_all is not None:
            self.fill_all(path, runs)
        elif self.fill is not None:
            self.fill(path, runs.of(""))
        if not any(run.columns for run in runs.by_key.values()) and self.empty is not None:
            raise unreadable(path, *self.empty)
        ordered = sorted(runs.by_key.items())
        for text in runs.notes if ordered else ():
            ordered[0][1].note(text)
        alone = len(ordered) == 1
        return [run.imported(path, self.name, is_ours=self.is_ours, key="" if alone else key) for key, run in ordered]


def _listed(what: str, found: Counter[str]) -> str:
    shown = ", ".join([name if len(name) <= 60 else f"{name[:57]}..." for name in list(found)[:NAMES_SHOWN]])
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    total = found.total()
    return f"{what}, left out: {shown}{more} ({total} {'value' if total == 1 else 'values'})"
