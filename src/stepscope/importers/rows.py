"""Rows of named values, the form of most logs: one step, perhaps a time and an owner, and many metrics."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from stepscope.importers.row_owners import Owners, owners
from stepscope.importers.run_builder import TEXT
from stepscope.importers.words import index, moment, number, plain, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from stepscope.importers.run_builder import RunBuilder

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
    """Yield the numbers of a row by name; those of nested objects, up to `depth`, by path.

    `other` is called with the name and value of everything that is neither a number nor None: a text, a list, a chart.
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


def add_rows(run: RunBuilder, rows: Iterable[Mapping[Any, Any]]) -> None:
    """Add rows: names and values; a row with `name` and `value` is a single point.

    The first rows show which columns name owners (a rank, a GPU, a host), so that the values of eight GPUs become eight
    series, not one. A text that is the same in every row that has it becomes a fact.
    """
    named = ({str(name): value for name, value in row.items()} for row in rows)
    sample = list(islice(named, SAMPLE_ROWS))
    whose = owners([(_key(row), row) for row in sample])
    for note in whose.notes():
        run.note(note)
    texts: dict[str, tuple[str | None, int]] = {}

    def remember(name: str, value: Any) -> None:
        if isinstance(value, str):
            text, seen = texts.get(name, (value, 0))
            texts[name] = text if text == value else None, seen + 1
        else:
            run.not_a_number(name, value)

    for count, row in enumerate(chain(sample, named)):
        _add_row(run, row, count, whose, remember)
    for name, (text, count) in texts.items():
        if text is None:
            run.leave_out(TEXT, name, count)
        else:
            run.facts[name] = text


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return step and time of a row as written; empty if it has none."""
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
