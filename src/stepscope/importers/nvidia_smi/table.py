"""Logs of nvidia-smi: `--query-gpu=… --format=csv` with or without a header or units, `dmon`, and the table itself."""

from __future__ import annotations

import re
from itertools import chain, islice
from typing import TYPE_CHECKING

from stepscope.core.ring import NO_STEP
from stepscope.importers.nvidia_smi import text as nvidia_smi_text
from stepscope.importers.nvidia_smi.columns import ABSENT, IDENTITIES, Column, header, inferred
from stepscope.importers.points import Points
from stepscope.importers.source import lines, unreadable
from stepscope.importers.words import moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from stepscope.importers.imported import Imported
    from stepscope.importers.source import Head

NAME = "nvidia_smi"
STAMPED = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?\s*,")
MEASURED = re.compile(r",\s*[-+.\d]+ (?:%|MiB|W|MHz)\s*(?:,|$)")
SAMPLE_ROWS = 4096
"""Number of rows without a header used to infer the columns."""
TOLD = {"name", "gpu_name", "driver_version"}
"""Queries that are facts of the log."""
ZONE_NOTE = "times have no zone: they are taken as UTC"


def recognises(head: Head) -> bool:
    """Return whether a text is one of the forms that nvidia-smi writes."""
    first = head.first_lines(4)
    return bool(first) and (_is_csv(first[0]) or nvidia_smi_text.recognises(first))


def _is_csv(line: str) -> bool:
    return header(line) is not None or (MEASURED.search(line) is not None and STAMPED.match(line.strip()) is not None)


def read(path: str) -> Imported:
    """Return the measurements of each GPU, in base units, by time; they have no step."""
    points = Points()
    texts = (line for line in lines(path, points.note) if line.strip())
    first = next(texts, "")
    facts: dict[str, Any] = {}
    columns = header(first)
    if columns is not None:
        _add_rows(points, columns, texts, facts)
    elif _is_csv(first) or not nvidia_smi_text.recognises([first, *islice(texts, 3)]):
        _add_without_header(path, points, facts)
    else:
        nvidia_smi_text.add(points, (line for line in lines(path, points.note) if line.strip()))
    if not points.columns:
        raise unreadable(path, "it holds no measurement", "write it by nvidia-smi --query-gpu=… --format=csv -l 1")
    points.note(ZONE_NOTE)
    return points.imported(path, NAME, facts)


def _add_without_header(path: str, points: Points, facts: dict[str, Any]) -> None:
    """Infer the columns from their units and values, then read the rows."""
    texts = (line for line in lines(path, points.note) if line.strip())
    sample = list(islice(texts, SAMPLE_ROWS))
    columns = inferred([_cells(line) for line in sample])
    if columns is None:
        raise unreadable(path, "neither a header nor units tell its columns", "write it with --format=csv")
    points.note("it has no header: columns are inferred from their units, order and values")
    facts["columns"] = [column.query for column in columns]
    _add_rows(points, columns, chain(sample, texts), facts)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _add_rows(points: Points, columns: Sequence[Column], texts: Iterator[str], facts: dict[str, Any]) -> None:
    """Add the rows; a GPU is identified by its index, else its identity, else its position among equal times."""
    queries = [column.query for column in columns]
    stamp = queries.index("timestamp") if "timestamp" in queries else None
    identity = next((queries.index(name) for name in IDENTITIES if name in queries), None)
    known: dict[str, int] = {}
    before, place = "", 0
    for line in texts:
        cells = _cells(line)
        if queries[0] and cells[0].startswith(queries[0]):
            continue  # a loop around nvidia-smi repeats the header
        if len(cells) != len(columns):
            points.note("lines with another number of columns, left out")
            continue
        written = cells[stamp] if stamp is not None else ""
        place = place + 1 if written and written == before else 0
        before = written
        gpu = place if identity is None else _gpu(queries[identity], cells[identity], known)
        time = moment(written) if written else float("nan")
        _add_cells(points, columns, cells, gpu, time, facts)


def _add_cells(
    points: Points, columns: Sequence[Column], cells: Sequence[str], gpu: int, time: float, facts: dict[str, Any]
) -> None:
    """Add one row of one GPU."""
    for column, cell in zip(columns, cells, strict=True):
        value = column.value(cell)
        if value is not None:
            points.add(f"gpu/{gpu}/{column.metric}", value, NO_STEP, time)
        elif column.query in TOLD and cell not in ABSENT:
            facts.setdefault(column.query, cell)


def _gpu(query: str, cell: str, known: dict[str, int]) -> int:
    """Return the index of a GPU: as written, or by the order in which identities first appear."""
    if query == "index" and cell.isdecimal() and len(cell) < 6:
        return int(cell)
    return known.setdefault(cell, len(known))
