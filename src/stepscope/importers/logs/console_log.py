"""A program's own output, as home-made GRPO trainers print it: values listed under their step, or a table by step.

`… (step 998) …` or `STEP 998` starts a step; `Total gradient norm: 20.18` below it is a value of that step. A table is
a line `Step | Pre | Post | …` followed by rows of numbers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope.importers.logs.log_lines import Figures, LoggedStep, figure_in, messages, without_prefix
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.words import parsed, plain

if TYPE_CHECKING:
    from stepscope.importers.source import FileHead

OPENING = re.compile(r"\bstep[ :#=]{1,3}(\d{1,15})\b", re.IGNORECASE)
ROW = re.compile(r"\s*\d{1,15}\s*(?:\|\s*[-+.\deE%]{1,30}\s*)+")
MOST_CHARACTERS = 2000
"""Maximum characters of a line."""


def recognises(head: FileHead) -> bool:
    """Return whether a text has values under steps, or a table by step."""
    texts = [without_prefix(line)[0] for line in head.text.splitlines() if len(line) < MOST_CHARACTERS]
    if any(map(OPENING.search, texts)) and any(len(text) < 300 and figure_in(text) for text in texts):
        return True
    return any(map(_columns, texts))


def _columns(line: str) -> list[str]:
    """Return the names of a table's columns if a line is its heading, else nothing."""
    if "|" not in line or len(line) > MOST_CHARACTERS:
        return []
    cells = _cells(line)
    return cells if len(cells) > 1 and plain(cells[0]) in {"step", "iteration", "iter", "epoch"} and all(cells) else []


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def fill(path: str, run: RunBuilder) -> None:
    """Read the tables' columns, and the values that occur at several steps; values before any step are facts."""
    below = Figures(run)
    at: LoggedStep | None = None
    columns: list[str] = []
    for line, rank in messages(path, run, MOST_CHARACTERS):
        if (found := _columns(line)) or not columns:
            columns = found
        if columns and ROW.fullmatch(line):
            _add_table_row(run, columns, line)
        elif at is None and (figure := figure_in(line)) is not None:
            run.facts.setdefault(*figure)
        elif at is not None and below.add(line, at):
            continue
        elif (opening := OPENING.search(line)) is not None:
            at = LoggedStep(int(opening[1]), rank or 0, 0)
    below.finish()


def _add_table_row(run: RunBuilder, columns: list[str], line: str) -> None:
    first, *others = _cells(line)
    step = int(parsed(first) or 0)
    for name, cell in zip(columns[1:], others, strict=False):
        value = parsed(cell.rstrip("%"))
        if value is None:
            run.leave_out("cells of a table that are no numbers", name)
        else:
            run.add(f"table/{plain(name)}", value, step)


FORMAT = ImportFormat(
    "console_log",
    "a program's own report: a table, or figures under a step",
    recognises,
    fill,
    ("no figure in it belongs to a step", "give the log of a training run"),
)
