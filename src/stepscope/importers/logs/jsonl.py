"""JSON rows: an object a line, or one list of objects; as trackers, trainers and Stepscope itself write them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.importers.points import Points
from stepscope.importers.rows import Rows, values
from stepscope.importers.source import document, json_value, lines, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.importers.imported import Imported
    from stepscope.importers.source import Head

NAME = "jsonl"
LINES_LOOKED_AT = 20
"""Lines at the beginning of which one holds a number: a program's log in JSON is no record of a training."""


def recognises(head: Head) -> bool:
    """Say whether a file begins with JSON objects that hold numbers, one a line, or with a list of objects."""
    first = head.first_lines(LINES_LOOKED_AT)
    if not first or first[0].lstrip().startswith("["):
        return bool(first) and head.text.lstrip("\ufeff \r\n\t[").startswith("{")
    rows = [json_value(line) for line in first]
    return isinstance(rows[0], dict) and any(next(values(row, _passed), None) for row in rows if isinstance(row, dict))


def _passed(_name: str, _value: Any) -> None:
    """Pass over what is no number: here one is looked for, nothing is read."""


def read(path: str) -> Imported:
    """Return the numbers of all rows; lines that are no JSON objects are counted in the notes."""
    points = Points()
    rows = Rows(points)
    for row in _rows(path, points):
        rows.add(row)
    facts = rows.finish()
    if not points.columns:
        raise unreadable(path, "its rows hold no numbers", 'give rows such as {"step": 1, "loss": 0.5}')
    return points.imported(path, NAME, facts)


def _rows(path: str, points: Points) -> Iterator[dict[str, Any]]:
    texts = lines(path, points.note)
    first = next((line for line in texts if line.strip()), "")
    if first.lstrip().startswith("["):
        yield from _objects(document(path), points)
        return
    yield from _objects([json_value(first)], points)
    for line in texts:
        if line.strip():
            yield from _objects([json_value(line)], points)


def _objects(found: Any, points: Points) -> Iterator[dict[str, Any]]:
    for row in found if isinstance(found, list) else []:
        if isinstance(row, dict):
            yield row
        else:
            points.note("rows that are no JSON objects, left out")
