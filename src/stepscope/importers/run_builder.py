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
from stepscope.importers.words import canonical_names, clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        self._left, self._most_names = most_points, most_names
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
        columns = self.columns.get(name)
        if columns is None and len(self.columns) < self._most_names:
            columns = PointColumns(array("q"), array("d"), array("d"), array("i"), array("i"), array("q"))
            self.columns[name] = columns
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

    def imported(self, path: str, form: str, *, is_ours: bool = False) -> Imported:
        """Return the run, with canonical names where they are certain, and facts without secrets.

        `facts["names"]` has the source's name of each renamed metric. In an export of ours names stay as they are.
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
        notes = [text if count == 1 else f"{text} ({count} times)" for text, count in self._notes.items()]
        return Imported(path, form, series, facts, (*notes, *(_listed(*each) for each in self._left_out.items())))


@dataclass(frozen=True)
class ImportFormat:
    """One per module; `formats.FORMATS` lists them."""

    name: str
    help: str
    recognises: Callable[[FileHead], bool]
    """Judges the start of a file."""
    fill: Callable[[str, RunBuilder], None]
    """Reads the file at a path into a builder."""
    empty: tuple[str, str] | None = None
    """Cause and remedy of the error for a file without a point; None: it is an empty run."""
    unite: Callable[[Sequence[Imported]], list[Imported]] = list
    """Merges the files of a folder that belong to one run: event files, checkpoints."""
    is_ours: bool = False
    """Whether Stepscope wrote it: names then stay as they are."""

    def read(self, path: str) -> Imported:
        """Return the run in a file."""
        run = RunBuilder()
        self.fill(path, run)
        if not run.columns and self.empty is not None:
            raise unreadable(path, *self.empty)
        return run.imported(path, self.name, is_ours=self.is_ours)


def _listed(what: str, found: Counter[str]) -> str:
    shown = ", ".join([name if len(name) <= 60 else f"{name[:57]}..." for name in list(found)[:NAMES_SHOWN]])
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    total = found.total()
    return f"{what}, left out: {shown}{more} ({total} {'value' if total == 1 else 'values'})"
