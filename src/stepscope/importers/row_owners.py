"""The owner of a log row's values: a rank, a GPU, a host, training or validation.

A column `gpu` that cycles through 0 to 7 names owners, and its rows are eight series; one with 97, 98, 99 is a
utilization. The rows decide, not the name alone: rows of several owners share a step or time, or alternate.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.importers.words import index, plain, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
