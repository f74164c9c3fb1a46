"""Rows of named values, the form of most logs: one step, perhaps a time and an owner, and many metrics.

The owner of a row is a rank, a GPU, a host, training or validation. A column `gpu` that cycles through 0 to 7 names
owners, and its rows are eight series; one with 97, 98, 99 is a utilization. The rows decide, not the name alone: rows
of several owners share a step or time, or alternate.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stepscope.importers.run_builder import TEXT, RunBuilder
from stepscope.importers.source import at_end
from stepscope.importers.words import index, moment, number, plain, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Keyed = Sequence[tuple[tuple[str, str], dict[str, Any]]]
    """Rows, each with its step and time as written; empty if it has none."""

RANKS = ("rank", "global_rank", "_rank")
"""Columns that are always a rank."""
WORKERS = ("local_rank", "worker", "worker_id", "worker_rank", "process", "process_id", "replica", "replica_id")
"""Columns that are a rank if they hold integers of several owners."""
CARDS = (
    *("gpu", "gpu_id", "gpu_index", "gpu_idx", "device", "device_id", "device_index", "card", "cuda_device"),
    *("accelerator", "npu", "tpu"),
)
HOSTS = ("host", "hostname", "node", "node_id", "node_rank", "machine", "instance")
PARTS = ("split", "phase", "mode", "stage", "subset")
"""Columns with parts of the training: `{"mode": "val", "loss": 2}` is `val/loss`."""
MOST_OWNERS = 1024
"""Maximum owners of a log."""
HALF, MOSTLY = 0.5, 0.9
"""Minimum shares of the rows: that share their step or time with others; of these, that have different owners; or that
have the same owner as one cycle before."""
CARD = re.compile(r"(?:(?:cuda|gpu|npu|xpu|hip|device|card)[ :_-]{0,2})?(\d{1,9})(?:\.0)?", re.IGNORECASE)


@dataclass(frozen=True)
class Owners:
    """The columns that name the owner of a row's values."""

    rank: str | None = None
    """The column that is the rank."""
    named: tuple[tuple[str, str], ...] = ()
    """Columns that become part of the metric name, with their word in it; empty for parts of the training."""

    def take(self, row: dict[str, Any]) -> tuple[int, str]:
        """Remove these columns from a row; return its rank and the prefix of its metric names."""
        rank = index(row.pop(self.rank, None)) if self.rank else 0
        parts = [f"{word}{_label(row.pop(name))}/" for name, word in self.named if row.get(name) is not None]
        return rank, "".join(parts)

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each column that names series, or is taken for a rank."""
        if self.rank is not None and plain(self.rank) not in RANKS:
            yield f"its column {self.rank} is taken for the rank"
        for name, word in self.named:
            yield f"its column {name} says whose values a row has: they are {word}<{name}>/…"


def owners(rows: Keyed) -> Owners:
    """Return which columns name the owner of a row's values."""
    names = {plain(name): name for _, row in rows for name in row}
    given = [names[word] for word in RANKS if word in names][:1]
    words = {names[word]: word for word in (*WORKERS, *CARDS, *HOSTS) if word in names and _possible(rows, names[word])}
    chosen = _needed(rows, given, list(words))
    ranks = (name for name in chosen if name in given or (words[name] in WORKERS and not _texts(rows, name)))
    rank = next(ranks, None)
    order = sorted((name for name in chosen if name != rank), key=lambda name: words[name] not in HOSTS)
    named = [(name, "gpu/" if words[name] in CARDS else f"{words[name]}/") for name in order]
    parts = [(names[word], "") for word in PARTS if word in names and len(_texts(rows, names[word])) > 1]
    return Owners(rank, (*named, *parts))


def _needed(rows: Keyed, given: list[str], others: list[str]) -> list[str]:
    """Return the fewest columns that distinguish the rows of one step, the most informative first."""
    if not others or not _several(rows, [*given, *others]):
        return given
    chosen = [*given, *others]
    for name in reversed(others):
        fewer = [each for each in chosen if each != name]
        if fewer and _distinguished(rows, fewer) == _distinguished(rows, chosen):
            chosen = fewer
    return chosen


def _texts(rows: Keyed, name: str) -> set[str]:
    return {row[name] for _, row in rows if isinstance(row.get(name), str)}


def _possible(rows: Keyed, name: str) -> bool:
    """Return whether a column holds several texts or integers, as owners do."""
    found = {row[name] for _, row in rows if isinstance(row.get(name), (str, int, float))}
    numbers = [each for each in found if not isinstance(each, str)]
    return 1 < len(found) <= MOST_OWNERS and all(whole(each) == each and 0 <= each < 2**31 for each in numbers)


def _several(rows: Keyed, columns: Sequence[str]) -> bool:
    """Return whether rows of several owners share a step or time; without steps, also whether they alternate."""
    if _apart(rows, columns) >= MOSTLY * _sharing(rows) >= HALF * len(rows) > 0:
        return True
    if any(step for (step, _), _ in rows):
        return False
    order = [_owner(row, columns) for _, row in rows]
    turn = len(set(order))
    again = sum(one == other for one, other in zip(order, order[turn:], strict=False))
    return len(order) >= 2 * turn and again >= MOSTLY * (len(order) - turn)


def _owner(row: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(row.get(name)) for name in columns)


def _counts(rows: Keyed) -> Counter[str]:
    """Return the number of rows at each step, or at each time where rows have no step."""
    return Counter(step or time for (step, time), _ in rows if step or time)


def _sharing(rows: Keyed) -> int:
    """Return how many rows share their step, else their time, with others."""
    return sum(count for count in _counts(rows).values() if count > 1)


def _apart(rows: Keyed, columns: Sequence[str]) -> int:
    """Return how many owners those rows have by these columns, each counted at every step or time."""
    counts = _counts(rows)
    return sum(counts[at] > 1 for at, _ in {(step or time, _owner(row, columns)) for (step, time), row in rows})


def _distinguished(rows: Keyed, columns: Sequence[str]) -> int:
    """Return how many owners the columns distinguish: at each step or time if rows share them, else in total."""
    return _apart(rows, columns) if _sharing(rows) else len({_owner(row, columns) for _, row in rows})


def _label(value: Any) -> str:
    """Return an owner as part of a name: 3 for 3.0 and `cuda:3`."""
    text = str(value).strip()
    found = CARD.fullmatch(text)
    return found[1] if found else text.replace("/", "_")


STEPS = (
    *("step", "_step", "global_step", "trainer/global_step", "train/global_step", "iteration", "iter", "steps"),
    *("training_step", "train_step", "current_step", "global_steps", "current_steps", "it", "update", "num_updates"),
    *("step_num", "batch", "batch_idx"),
)
"""Names of the step, likeliest first."""
TIMES = ("time", "timestamp", "_timestamp", "wall_time", "walltime", "created_at", "datetime", "date", "ts")
"""Names of the time."""
DEEPEST = 4
"""Maximum depth of nested objects; `{"train": {"loss": 1}}` is `train/loss`."""
SAMPLE_ROWS = 2000
"""Number of first rows used to find the columns that name owners."""
UNCERTAIN = frozenset((*WORKERS, *CARDS, *HOSTS, *PARTS))
"""Columns of which only several rows show whether they name owners."""
PATIENT_ENDS = 20
"""How often the end of a live source is reached before such a column is judged by the rows that are there."""


def place(names: Iterable[str], words: tuple[str, ...]) -> str | None:
    """Return the name in a row that means one of `words`, if any."""
    known = {plain(name): name for name in names}
    return next((known[word] for word in words if word in known), None)


@lru_cache(maxsize=64)
def places(names: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return which names of a row are its step and its time; rows of a log mostly have the same names."""
    return place(names, STEPS), place(names, TIMES)


def values(
    row: Mapping[Any, Any], other: Callable[[str, Any], None], prefix: str = "", depth: int = DEEPEST, join: str = "/"
) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a row by name; those of nested objects, up to `depth`, by their names joined by `join`.

    `other` is called with the name and value of everything that is neither a number nor None: a text, a list, a chart.
    """
    for key, value in row.items():
        name = f"{prefix}{key}"
        figure = number(value)
        if figure is not None:
            yield name, figure
        elif isinstance(value, dict) and depth > 1 and "_type" not in value:
            yield from values(value, other, f"{name}{join}", depth - 1, join)
        elif value is not None:
            other(name, value)


def add_rows(run: RunBuilder, rows: Iterable[Mapping[Any, Any]]) -> None:
    """Add rows: names and values; a row with `name` and `value` is a single point.

    The first rows show which columns name owners (a rank, a GPU, a host), so that the values of eight GPUs become eight
    series, not one. A text that is the same in every row that has it becomes a fact.
    """
    intake = RowIntake(run)
    for row in rows:
        intake.add({str(name): value for name, value in row.items()})
    intake.finish()


class RowIntake:
    """Rows on their way into a run: the first ones wait until it is known which of their columns name owners."""

    def __init__(self, run: RunBuilder) -> None:
        """Start empty; call `finish` when all rows are added."""
        self._run = run
        self._sample: list[dict[str, Any]] = []
        self._whose: Owners | None = None
        self._count = self._ends = 0
        self._texts: dict[str, tuple[str | None, int]] = {}
        at_end(self._settle_live)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row, or keep it until enough rows are there."""
        if self._whose is not None:
            self._take(row, self._whose)
            return
        self._sample.append(row)
        if len(self._sample) >= SAMPLE_ROWS:
            self._settle()

    def finish(self) -> None:
        """Add what is left; a text that changed from row to row is left out."""
        self._settle()
        for name, (text, count) in self._texts.items():
            if text is None:
                self._run.leave_out(TEXT, name, count)

    def _settle_live(self) -> None:
        """Add the rows of a live source that is short so far; a column that may name owners is given some time."""
        if self._whose is not None or not self._sample:
            return
        self._ends += 1
        names = {plain(name) for row in self._sample for name in row}
        if names.isdisjoint(UNCERTAIN) or self._ends >= PATIENT_ENDS:
            self._settle()

    def _settle(self) -> None:
        """Decide which columns name owners, and add the rows that waited for it."""
        if self._whose is None:
            whose = self._whose = owners([(_key(row), row) for row in self._sample])
            for note in whose.notes():
                self._run.note(note)
            waiting, self._sample = self._sample, []
            for row in waiting:
                self._take(row, whose)

    def _take(self, row: dict[str, Any], whose: Owners) -> None:
        _add_row(self._run, row, self._count, whose, self._remember)
        self._count += 1

    def _remember(self, name: str, value: Any) -> None:
        if not isinstance(value, str):
            self._run.not_a_number(name, value)
            return
        text, seen = self._texts.get(name, (value, 0))
        self._texts[name] = text if text == value else None, seen + 1
        if text == value:
            self._run.facts[name] = value
        else:
            self._run.facts.pop(name, None)


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    step, time = (str(row[name]) if name is not None and row[name] is not None else "" for name in places(tuple(row)))
    return step, time


def _add_row(
    run: RunBuilder, row: dict[str, Any], count: int, whose: Owners, other: Callable[[str, Any], None]
) -> None:
    step_name, time_name = places(tuple(row))
    step = whole(row.pop(step_name)) if step_name else None
    time = moment(row.pop(time_name)) if time_name else math.nan
    rank, prefix = whose.take(row)
    if not step_name:  # rows without a step count up; with only a time, the step is the epoch
        step = whole(row.get("epoch")) if time_name else count
    if isinstance(row.get("name"), str):
        # A null with `nonfinite` is the number that it names.
        figure = number(row.get("nonfinite") if row.get("value") is None else row["value"])
        if figure is not None:
            run.add(prefix + row["name"], figure, step, time, rank, index(row.get("attempt")))
            return
    for name, figure in values(row, other):
        run.add(prefix + name, figure, step, time, rank)
