"""JSON rows: one object per line, or one list of objects; as trackers, trainers and Stepscope itself write them.

prime-rl's file monitor writes such rows; verl's file logger puts the values of each one level deeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.importers.rows import add_rows, values
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, document, json_value, lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


LINES_LOOKED_AT = 20
"""One of so many first lines must hold a number: a program's log in JSON is not a training record."""


def recognises(head: FileHead) -> bool:
    """Return whether a file starts with JSON objects that hold numbers, one per line, or with a list of objects."""
    first = head.first_lines(LINES_LOOKED_AT)
    if not first or first[0].lstrip().startswith("["):
        return bool(first) and head.text.lstrip("\ufeff \r\n\t[").startswith("{")
    rows = [json_value(line) for line in first]
    found = (next(values(row, lambda *_: None), None) for row in rows if isinstance(row, dict))
    return isinstance(rows[0], dict) and any(found)


def fill(path: str, run: RunBuilder) -> None:
    """Read the numbers of all rows; rows that are not JSON objects are counted in the notes."""
    add_rows(run, map(_plain, objects(_rows(path, run), run, "rows that are no JSON objects, left out")))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of verl's, `{"step": 1, "data": {"actor/loss": 0.5}}`, as other tools write it."""
    data = row.get("data")
    return {**data, "step": row["step"]} if isinstance(data, dict) and row.keys() == {"step", "data"} else row


def _rows(path: str, run: RunBuilder) -> Iterator[Any]:
    texts = (line for line in lines(path, run.note) if line.strip())
    first = next(texts, "")
    if first.lstrip().startswith("["):
        found = document(path)
        yield from found if isinstance(found, list) else []
    else:
        yield json_value(first)
        yield from map(json_value, texts)


def objects(rows: Iterable[Any], run: RunBuilder, note: str) -> Iterator[dict[str, Any]]:
    """Yield the rows that are JSON objects; the others are noted."""
    for row in rows:
        if isinstance(row, dict):
            yield row
        else:
            run.note(note)


FORMAT = ImportFormat(
    "jsonl", "JSON rows", recognises, fill, ("its rows hold no numbers", 'give rows such as {"step": 1, "loss": 0.5}')
)
