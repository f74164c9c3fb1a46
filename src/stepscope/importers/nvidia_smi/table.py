"""Logs of nvidia-smi: `--query-gpu=… --format=csv` with or without a header or units, `dmon`, and the table itself."""

from __future__ import annotations

import re
from itertools import chain, islice
from typing import TYPE_CHECKING

from stepscope.importers.import_format import ImportFormat
from stepscope.importers.nvidia_smi import text as nvidia_smi_text
from stepscope.importers.nvidia_smi.columns import ABSENT, IDENTITIES, QueryColumn, header, inferred
from stepscope.importers.source import lines, unreadable
from stepscope.importers.words import moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stepscope.importers.run_builder import RunBuilder
    from stepscope.importers.source import FileHead

STAMPED = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?\s*,")
MEASURED = re.compile(r",\s*[-+.\d]+ (?:%|MiB|W|MHz)\s*(?:,|$)")
SAMPLE_ROWS = 4096
"""Number of rows without a header used to infer the columns."""
FACTS = {"name", "gpu_name", "driver_version"}
"""Queries that are facts of the log."""


def recognises(head: FileHead) -> bool:
    """Return whether a text is one of the forms that nvidia-smi writes."""
    first = head.first_lines(4)
    return bool(first) and (_is_csv(first[0]) or nvidia_smi_text.recognises(first))


def _is_csv(line: str) -> bool:
    return header(line) is not None or (MEASURED.search(line) is not None and STAMPED.match(line.strip()) is not None)


def fill(path: str, run: RunBuilder) -> None:
    """Read the measurements of each GPU, in base units, by time; they have no step."""
    texts = _texts(path, run)
    first = next(texts, "")
    columns = header(first)
    if columns is not None:
        _add_rows(run, columns, texts)
    elif _is_csv(first) or not nvidia_smi_text.recognises([first, *islice(texts, 3)]):
        _add_without_header(path, run)
    else:
        nvidia_smi_text.add(run, _texts(path, run))
    run.note("times have no zone: they are taken as UTC")


def _texts(path: str, run: RunBuilder) -> Iterator[str]:
    return (line for line in lines(path, run.note) if line.strip())


def _add_without_header(path: str, run: RunBuilder) -> None:
    """Infer the columns from their units and values, then read the rows."""
    texts = _texts(path, run)
    sample = list(islice(texts, SAMPLE_ROWS))
    columns = inferred([_cells(line) for line in sample])
    if columns is None:
        raise unreadable(path, "neither a header nor units show its columns", "write it with --format=csv")
    run.note("it has no header: columns are inferred from their units, order and values")
    run.facts["columns"] = [column.query for column in columns]
    _add_rows(run, columns, chain(sample, texts))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _add_rows(run: RunBuilder, columns: Sequence[QueryColumn], texts: Iterable[str]) -> None:
    """Add the rows; a GPU is identified by its index, else its identity, else its position among equal times."""
    queries = [column.query for column in columns]
    stamp = queries.index("timestamp") if "timestamp" in queries else None
    identity = next((queries.index(name) for name in IDENTITIES if name in queries), None)
    known: dict[str, int] = {}
    before, gpu = "", 0
    for line in texts:
        cells = _cells(line)
        if queries[0] and cells[0].startswith(queries[0]):
            continue  # a loop around nvidia-smi repeats the header
        if len(cells) != len(columns):
            run.note("lines with another number of columns, left out")
            continue
        written = cells[stamp] if stamp is not None else ""
        if identity is None:
            gpu = gpu + 1 if written and written == before else 0
        else:
            gpu = _gpu(queries[identity], cells[identity], known)
        before = written
        _add_cells(run, columns, cells, gpu, moment(written))


def _gpu(query: str, cell: str, known: dict[str, int]) -> int:
    """Return the index of a GPU: as written, or by the order in which identities first appear."""
    if query == "index" and cell.isdecimal() and len(cell) < 6:
        return int(cell)
    return known.setdefault(cell, len(known))


def _add_cells(run: RunBuilder, columns: Sequence[QueryColumn], cells: Sequence[str], gpu: int, time: float) -> None:
    """Add one row of one GPU."""
    for column, cell in zip(columns, cells, strict=True):
        value = column.value(cell)
        if value is not None:
            run.add(f"gpu/{gpu}/{column.metric}", value, time=time)
        elif column.query in FACTS and cell not in ABSENT:
            run.facts.setdefault(column.query, cell)


FORMAT = ImportFormat(
    "nvidia_smi",
    "nvidia-smi log: csv, dmon or the table",
    recognises,
    fill,
    ("it holds no measurement", "write it by nvidia-smi --query-gpu=… --format=csv -l 1"),
)
