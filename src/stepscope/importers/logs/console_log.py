"""A program's own output, as home-made GRPO trainers print it: values listed under their step, or a table by step.

`… (step 998) …` or `STEP 998` starts a step; `Total gradient norm: 20.18` below it is a value of that step. A table is
a line `Step | Pre | Post | …` followed by rows of numbers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope.importers.logs.figures import Figures, Place, figure_in
from stepscope.importers.logs.log_prefix import without_prefix
from stepscope.importers.points import Points
from stepscope.importers.source import lines, unreadable
from stepscope.importers.words import parsed, plain

if TYPE_CHECKING:
    from stepscope.importers.imported import Imported
    from stepscope.importers.source import Head

NAME = "console_log"
OPENING = re.compile(r"\bstep[ :#=]{1,3}(\d{1,15})\b", re.IGNORECASE)
ROW = re.compile(r"\s*\d{1,15}\s*(?:\|\s*[-+.\deE%]{1,30}\s*)+")
MOST_CHARACTERS = 2000
"""Maximum characters of a line."""


def recognises(head: Head) -> bool:
    """Return whether a text has values under steps, or a table by step."""
    texts = [without_prefix(line)[0] for line in head.text.splitlines() if len(line) < MOST_CHARACTERS]
    opened = any(map(OPENING.search, texts))
    return (opened and any(map(_is_figure, texts))) or any(map(_columns, texts))


def _is_figure(line: str) -> bool:
    return len(line) < 300 and figure_in(line) is not None


def _columns(line: str) -> list[str]:
    """Return the names of a table's columns if a line is its heading, else nothing."""
    if "|" not in line or len(line) > MOST_CHARACTERS:
        return []
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    return cells if len(cells) > 1 and plain(cells[0]) in {"step", "iteration", "iter", "epoch"} and all(cells) else []


def read(path: str) -> Imported:
    """Return the tables' columns, and the values that occur at several steps; values before any step are facts."""
    points = Points()
    facts: dict[str, float] = {}
    below = Figures(points)
    place: Place | None = None
    columns: list[str] = []
    for raw in lines(path, points.note):
        if len(raw) > MOST_CHARACTERS:
            points.note(f"lines longer than {MOST_CHARACTERS} characters, left out")
            continue
        line, rank = without_prefix(raw)
        if (found := _columns(line)) or not columns:
            columns = found
        if columns and ROW.fullmatch(line):
            _add_table_row(points, columns, line)
        elif place is None and (figure := figure_in(line)) is not None:
            facts.setdefault(*figure)
        elif place is not None and below.add(line, place):
            continue
        elif (opening := OPENING.search(line)) is not None:
            place = Place(int(opening[1]), rank or 0, 0)
    below.finish()
    if not points.columns:
        raise unreadable(path, "no figure in it belongs to a step", "give the log of a training run")
    return points.imported(path, NAME, facts)


def _add_table_row(points: Points, columns: list[str], line: str) -> None:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    step = int(parsed(cells[0]) or 0)
    for name, cell in zip(columns[1:], cells[1:], strict=False):
        value = parsed(cell.rstrip("%"))
        if value is None:
            points.leave_out("cells of a table that are no numbers", name)
        else:
            points.add(f"table/{plain(name)}", value, step)
