"""A program's own report, as home-made GRPO trainers print it: figures under their step, or a table by step.

`… (step 998) …` or `STEP 998` opens a step; `Total gradient norm: 20.18` below it is a figure of that step. A table is
a line `Step | Pre | Post | …` and rows of numbers under it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from stepscope.importers.points import Points
from stepscope.importers.source import lines, unreadable
from stepscope.importers.words import parsed, plain, scaled

if TYPE_CHECKING:
    from stepscope.importers.imported import Imported
    from stepscope.importers.source import Head

NAME = "console_log"
OPENING = re.compile(r"\bstep[ :#=]{1,3}(\d{1,15})\b", re.IGNORECASE)
FIGURE = re.compile(
    r"\W{0,12}([A-Za-z][A-Za-z0-9 _/()-]{1,60}?)\s{0,20}[:=][:=\s]{0,20}"
    r"([-+]?[\d.]{1,30}(?:[eE][-+]?\d{1,3})?)(%?)(?:\s{0,4}\(.{0,80}\))?\s{0,20}"
)
"""A line that is nothing but a name and a number."""
ROW = re.compile(r"\s*\d{1,15}\s*(?:\|\s*[-+.\deE%]{1,30}\s*)+")
MOST_CHARACTERS = 2000
"""Characters of the longest line that is looked at."""
LEAST_TIMES = 2
"""Steps at which a figure comes up before it is a metric and not a setting."""


def recognises(head: Head) -> bool:
    """Say whether a text has figures under steps, or a table by step."""
    texts = head.text.splitlines()
    opened = any(OPENING.search(line) for line in texts if len(line) < MOST_CHARACTERS)
    return (opened and any(map(_is_figure, texts))) or any(map(_columns, texts))


def _is_figure(line: str) -> bool:
    return len(line) < 300 and FIGURE.fullmatch(line) is not None


def _columns(line: str) -> list[str]:
    """Return the names of a table's columns if a line is its heading, else nothing."""
    if "|" not in line or len(line) > MOST_CHARACTERS:
        return []
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    return cells if len(cells) > 1 and plain(cells[0]) in {"step", "iteration", "iter", "epoch"} and all(cells) else []


def read(path: str) -> Imported:
    """Return the tables' columns, and the figures that come up at several steps; those before any step are facts."""
    points = Points()
    facts: dict[str, float] = {}
    step: int | None = None
    columns: list[str] = []
    for line in lines(path, points.note):
        if len(line) > MOST_CHARACTERS:
            continue
        if (found := _columns(line)) or not columns:
            columns = found
        if columns and ROW.fullmatch(line):
            _add_table_row(points, columns, line)
        elif (figure := FIGURE.fullmatch(line)) is not None:
            name, value = plain(figure[1]), parsed(figure[2])
            if value is not None and step is None:
                facts.setdefault(name, value)
            elif value is not None and step is not None:
                points.add(name, scaled(value, 0.01 if figure[3] else 1.0), step)
        elif (opening := OPENING.search(line)) is not None:
            step = int(opening[1])
    _drop_settings(points)
    if not points.columns:
        raise unreadable(path, "no figure in it belongs to a step", "give the log of a training run")
    return points.imported(path, NAME, facts)


def _add_table_row(points: Points, columns: list[str], line: str) -> None:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    step = int(parsed(cells[0]) or 0)
    for name, cell in zip(columns[1:], cells[1:], strict=False):
        value = parsed(cell.rstrip("%"))
        if value is not None:
            points.add(f"table/{plain(name)}", value, step)


def _drop_settings(points: Points) -> None:
    """Leave out figures that came up at one step only: they are a summary, or chance."""
    for name in [name for name, column in points.columns.items() if len(Counter(column.step)) < LEAST_TIMES]:
        del points.columns[name]
