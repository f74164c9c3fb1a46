"""JSON rows: one object per line, or one list of objects; as trackers, trainers and Stepscope itself write them."""

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
"""Number of first lines of which one must hold a number: a program's log in JSON is not a training record."""


def recognises(head: Head) -> bool:
    """Return whether a file starts with JSON objects that hold numbers, one per line, or with a list of objects."""
    first = head.first_lines(LINES_LOOKED_AT)
    if not first or first[0].lstrip().startswith("["):
        return bool(first) and head.text.lstrip("\ufeff \r\n\t[").startswith("{")
    rows = [json_value(line) for line in first]
    return isinstance(rows[0], dict) and any(next(values(row, _passed), None) for row in rows if isinstance(row, dict))


def _passed(_name: str, _value: Any) -> None:
    """Ignore values that are not numbers: this only searches for one."""


def read(path: str) -> Imported:
    """Return the numbers of all rows; lines that are not JSON objects are counted in the notes."""
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
