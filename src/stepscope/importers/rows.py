"""Rows of named values, as most logs have them: one step, perhaps a time and a rank, and many metrics."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from stepscope.core.ring import NO_STEP
from stepscope.importers.words import moment, number, plain, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from stepscope.importers.points import Points

STEPS = (
    *("step", "_step", "global_step", "trainer/global_step", "train/global_step", "iteration", "iter", "steps"),
    *("training_step", "train_step", "current_step", "global_steps", "current_steps", "it", "update", "num_updates"),
    *("step_num", "batch", "batch_idx"),
)
"""Names of the step, the likeliest first."""
TIMES = ("time", "timestamp", "_timestamp", "wall_time", "walltime", "created_at", "datetime", "date", "ts")
"""Names of the time."""
RANKS = ("rank", "global_rank", "_rank")
DEEPEST = 4
"""Levels of nested objects that are looked into; `{"train": {"loss": 1}}` is `train/loss`."""


def place(names: Iterable[str], words: tuple[str, ...]) -> str | None:
    """Return the name in a row that means one of `words`, if any."""
    known = {plain(name): name for name in names}
    return next((known[word] for word in words if word in known), None)


@lru_cache(maxsize=64)
def places(names: tuple[str, ...]) -> tuple[str | None, str | None, str | None]:
    """Return which names of a row are its step, its time and its rank; rows of a log mostly have the same names."""
    return place(names, STEPS), place(names, TIMES), place(names, RANKS)


def values(row: Mapping[Any, Any], prefix: str = "", depth: int = DEEPEST) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a row by name; those of objects in it by path. A chart, table or image has none."""
    for key, value in row.items():
        name = f"{prefix}{key}"
        figure = number(value)
        if figure is not None:
            yield name, figure
        elif isinstance(value, dict) and depth > 1 and "_type" not in value:
            yield from values(value, f"{name}/", depth - 1)


def add_row(points: Points, row: Mapping[Any, Any], count: int) -> None:
    """Keep the values of one row.

    Args:
        points: where to.
        row: names and values; one with `name` and `value` is a single point.
        count: the step of a row that has neither step nor time: rows count up. With a time alone it is the epoch.
    """
    row = {str(name): value for name, value in row.items()}
    step_name, time_name, rank_name = places(tuple(row))
    step = whole(row.pop(step_name)) if step_name else None
    time = moment(row.pop(time_name)) if time_name else math.nan
    rank = _small(row.pop(rank_name)) if rank_name else 0
    if step is None and not step_name:
        step = whole(row.get("epoch")) if time_name else count
    step = NO_STEP if step is None else step
    if isinstance(row.get("name"), str) and (figure := _single(row)) is not None:
        points.add(row["name"], figure, step, time, rank, _small(row.get("attempt")))
        return
    for name, figure in values(row):
        points.add(name, figure, step, time, rank)


def _small(value: Any) -> int:
    """Return a rank or attempt; 0 for what is none."""
    found = whole(value)
    return found if found is not None and 0 <= found < 2**31 else 0


def _single(row: Mapping[str, Any]) -> float | None:
    """Return the value of a row that is one point; null with `nonfinite` is the number that it names."""
    return number(row.get("value")) if row.get("value") is not None else number(row.get("nonfinite"))
