"""Rows of named values, the form of most logs: one step, perhaps a time and an owner, and many metrics."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stepscope.core.ring import NO_STEP
from stepscope.importers.row_owners import Owners, owners
from stepscope.importers.words import moment, number, plain, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from stepscope.importers.points import Points

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
TEXT = "text"
NO_NUMBER = "lists, switches, media and deeper objects"


def place(names: Iterable[str], words: tuple[str, ...]) -> str | None:
    """Return the name in a row that means one of `words`, if any."""
    known = {plain(name): name for name in names}
    return next((known[word] for word in words if word in known), None)


@lru_cache(maxsize=64)
def places(names: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Return which names of a row are its step and its time; rows of a log mostly have the same names."""
    return place(names, STEPS), place(names, TIMES)


def values(
    row: Mapping[Any, Any], other: Callable[[str, Any], None], prefix: str = "", depth: int = DEEPEST
) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a row by name; those of nested objects by path.

    Args:
        row: names and values; None is absent.
        other: called with every value that is not a number, and its name: a text, a list, a chart, a too deep object.
        prefix: prefix of the names.
        depth: maximum depth of nested objects.
    """
    for key, value in row.items():
        name = f"{prefix}{key}"
        figure = number(value)
        if figure is not None:
            yield name, figure
        elif isinstance(value, dict) and depth > 1 and "_type" not in value:
            yield from values(value, other, f"{name}/", depth - 1)
        elif value is not None:
            other(name, value)


def left_out(points: Points) -> Callable[[str, Any], None]:
    """Return a function that notes values that are not numbers, for `values`."""
    return lambda name, value: points.leave_out(TEXT if isinstance(value, str) else NO_NUMBER, name)


class Rows:
    """Rows on their way into points.

    The first rows are held back until the columns that name owners (a rank, a GPU, a host) are known, so that the
    values of eight GPUs become eight series, not one.
    """

    def __init__(self, points: Points) -> None:
        """Start empty; call `finish` when all rows are added."""
        self._points = points
        self._waiting: list[dict[str, Any]] = []
        self._owners: Owners | None = None
        self._count = 0
        self._texts: dict[str, tuple[str | None, int]] = {}
        self._other = left_out(points)

    def add(self, row: Mapping[Any, Any]) -> None:
        """Add one row: names and values; a row with `name` and `value` is a single point."""
        named = {str(name): value for name, value in row.items()}
        if self._owners is not None:
            self._keep(named, self._owners)
            return
        self._waiting.append(named)
        if len(self._waiting) >= SAMPLE_ROWS:
            self._decide()

    def finish(self) -> dict[str, str]:
        """Add the rows held back; return the texts that are the same in every row that has them, by name."""
        if self._owners is None:
            self._decide()
        for name, (text, count) in self._texts.items():
            if text is None:
                self._points.leave_out(TEXT, name, count)
        return {name: text for name, (text, _) in self._texts.items() if text is not None}

    def _decide(self) -> None:
        self._owners = found = owners([(_key(row), row) for row in self._waiting])
        for text in found.told():
            self._points.note(text)
        for row in self._waiting:
            self._keep(row, found)
        self._waiting.clear()

    def _keep(self, row: dict[str, Any], whose: Owners) -> None:
        step_name, time_name = places(tuple(row))
        step = whole(row.pop(step_name)) if step_name else None
        time = moment(row.pop(time_name)) if time_name else math.nan
        rank, prefix = whose.take(row)
        if step is None and not step_name:  # rows without a step count up; with only a time, the step is the epoch
            step = whole(row.get("epoch")) if time_name else self._count
        self._count += 1
        step = NO_STEP if step is None else step
        if isinstance(row.get("name"), str) and (figure := _single(row)) is not None:
            self._points.add(prefix + row["name"], figure, step, time, rank, _small(row.get("attempt")))
            return
        for name, figure in values(row, self._not_a_number):
            self._points.add(prefix + name, figure, step, time, rank)

    def _not_a_number(self, name: str, value: Any) -> None:
        """Remember a text, which may be the same in all rows; note everything else."""
        if isinstance(value, str):
            text, seen = self._texts.get(name, (value, 0))
            self._texts[name] = text if text == value else None, seen + 1
        else:
            self._other(name, value)


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return step and time of a row as written; empty if it has none."""
    step, time = (str(row[name]) if name is not None and row[name] is not None else "" for name in places(tuple(row)))
    return step, time


def _small(value: Any) -> int:
    """Return a rank or attempt; 0 for an invalid value."""
    found = whole(value)
    return found if found is not None and 0 <= found < 2**31 else 0


def _single(row: Mapping[str, Any]) -> float | None:
    """Return the value of a single-point row; null with `nonfinite` is the number that it names."""
    return number(row.get("value")) if row.get("value") is not None else number(row.get("nonfinite"))
