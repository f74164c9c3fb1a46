"""CSV with a header: Lightning's `metrics.csv`, TensorBoard's download, Stepscope's own export, and similar files."""

from __future__ import annotations

import csv
import os
from typing import TYPE_CHECKING, Any

from stepscope.importers.points import Points
from stepscope.importers.rows import STEPS, TIMES, Rows, place
from stepscope.importers.source import lines, unreadable
from stepscope.importers.words import parsed, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.importers.imported import Imported
    from stepscope.importers.source import Head

NAME = "csv"
SEPARATORS = (",", "\t", ";")
MOST_COLUMNS = 10_000
COUNTED = {"epoch"}
"""Columns that mark a table as a training log, in addition to step and time."""


def recognises(head: Head) -> bool:
    """Return whether a text starts with a header that names a step, time or epoch, and a row of numbers."""
    first = head.first_lines(2)
    if len(first) < 2:
        return False
    names, cells = (_split(line, _separator(first[0])) for line in first)
    if len(names) < 2 or len(cells) != len(names) or any(parsed(name) is not None for name in names):
        return False
    known = dict.fromkeys(map(plain, names))
    is_log = place(known, STEPS) or place(known, TIMES) or COUNTED & known.keys()
    return bool(is_log) and any(parsed(cell) is not None for cell in cells)


def read(path: str) -> Imported:
    """Return the columns; an empty cell is absent. A table with only step and `value` is named after its file."""
    points = Points()
    texts = lines(path, points.note)
    first = next((line for line in texts if line.strip()), "")
    separator = _separator(first)
    names = [name.strip() for name in _split(first, separator)]
    if len(set(names)) < len(names) or not 2 <= len(names) <= MOST_COLUMNS:
        raise unreadable(path, "its header does not name each column once", "give a CSV with one name a column")
    alone = _alone(names, path)
    rows = Rows(points)
    for cells in _rows(texts, separator, points):
        if len(cells) != len(names):
            points.note("rows with another number of cells, left out")
            continue
        rows.add({alone.get(name, name): _value(cell, separator) for name, cell in zip(names, cells, strict=True)})
    facts = rows.finish()
    if not points.columns:
        raise unreadable(path, "it holds no numbers", "give a CSV with a column step or time")
    return points.imported(path, NAME, facts)


def _alone(names: Sequence[str], path: str) -> dict[str, str]:
    """Return the metric of a lone column `value`: TensorBoard writes its tag into the file name."""
    if "name" in names or {plain(name) for name in names} - {*STEPS, *TIMES} != {"value"}:
        return {}
    stem = os.path.basename(path).split(".csv")[0]
    return {name: stem.rpartition("-tag-")[2].strip("-_ ") or stem for name in names if plain(name) == "value"}


def _separator(line: str) -> str:
    return max(SEPARATORS, key=line.count)


def _split(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _rows(texts: Iterator[str], separator: str, points: Points) -> Iterator[list[str]]:
    rows = csv.reader(texts, delimiter=separator)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            points.note(f"rows that are no CSV ({error}), left out")
            continue
        if row is None:
            return
        if row:
            yield row


def _value(cell: str, separator: str) -> Any:
    """Return a cell as a number if it is one; an empty cell as None. If `;` separates cells, a comma is decimal."""
    figure = parsed(cell.replace(",", ".") if separator == ";" else cell)
    return figure if figure is not None else cell.strip().removeprefix("'") or None
