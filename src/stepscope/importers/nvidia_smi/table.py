"""Logs of nvidia-smi: `--query-gpu=… --format=csv` with or without a header or units, `dmon`, and the table itself.

The last two are for people: one line per GPU and second, and the table that `-l` repeats.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING

from stepscope.importers.nvidia_smi.columns import ABSENT, IDENTITIES, QueryColumn, header, inferred
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import FileHead, lines, unreadable
from stepscope.importers.words import moment, parsed, scaled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stepscope.importers.run_builder import RunBuilder

DMON = {
    "pwr": ("power_watts", 1.0),
    "gtemp": ("temperature_celsius", 1.0),
    "temp": ("temperature_celsius", 1.0),
    "mtemp": ("memory_temperature_celsius", 1.0),
    "sm": ("utilization_ratio", 0.01),
    "mem": ("memory_utilization_ratio", 0.01),
    "enc": ("encoder_utilization_ratio", 0.01),
    "dec": ("decoder_utilization_ratio", 0.01),
    "mclk": ("memory_clock_hertz", 1e6),
    "pclk": ("sm_clock_hertz", 1e6),
    "fb": ("memory_used_bytes", 2.0**20),
    "rxpci": ("pcie_received_bytes_per_second", 1e6),
    "txpci": ("pcie_sent_bytes_per_second", 1e6),
}
"""Columns of dmon: the metric and the factor to its unit."""
HEADING = re.compile(r"#\s*(?:Date\s+Time\s+|Time\s+)?gpu\s(?!.*\bpid\b)")
"""For dmon only; pmon lists processes, not GPUs."""
DATE = re.compile(r"\w{3} (\w{3}\s+\d{1,2} \d\d:\d\d:\d\d \d{4})\s*")
GPU = re.compile(r"\|\s{1,5}(\d{1,3})\s{1,6}(\S[^|]{0,60})\|")
MEMORY = re.compile(r"(\d{1,8})MiB\s{0,5}/\s{0,5}(\d{1,8})MiB")
FIGURES = {
    "fan_ratio": (re.compile(r"^\|\s{0,5}(\d{1,3})%\s"), 0.01),
    "power_watts": (re.compile(r"\s(\d{1,5})W\s{0,5}/\s{0,5}\d{1,5}W"), 1.0),
    "power_limit_watts": (re.compile(r"\s\d{1,5}W\s{0,5}/\s{0,5}(\d{1,5})W"), 1.0),
    "temperature_celsius": (re.compile(r"\s(\d{1,3})C\s"), 1.0),
}
"""Figures of a GPU in the table, by metric, with the factor to its unit."""
BUSY = re.compile(r"\|\s{1,10}(\d{1,3})%\s")
"""The utilization, which comes after the memory."""


def _is_text(first: Sequence[str]) -> bool:
    """Return whether a text starts as dmon or the table does."""
    return HEADING.match(first[0]) is not None or any("| NVIDIA-SMI " in line for line in first)


def _add_texts(run: RunBuilder, texts: Iterable[str]) -> None:
    """Add the lines of either form."""
    columns: list[str] = []
    time, gpu = math.nan, None
    for line in texts:
        if line.startswith("#"):
            columns = line.lstrip("# ").split() if HEADING.match(line) else columns
        elif columns:
            _add_dmon(run, columns, line.split())
        elif (found := DATE.fullmatch(line)) is not None:
            time = math.nan
            with suppress(ValueError):
                time = datetime.strptime(f"{' '.join(found[1].split())} +0000", "%b %d %H:%M:%S %Y %z").timestamp()
        elif (measured := MEMORY.search(line)) is not None and gpu is not None:
            _add_table(run, line, gpu, time, measured)
            gpu = None
        elif (found := GPU.match(line)) is not None:
            gpu = int(found[1])


def _add_dmon(run: RunBuilder, columns: Sequence[str], cells: Sequence[str]) -> None:
    """Add one line of dmon; `-` is absent. A time without a date is ignored."""
    row = dict(zip(columns, cells, strict=False))
    gpu = row.get("gpu", "")
    if not gpu.isdecimal() or len(gpu) > 5:
        return
    day = row.get("Date", "")
    time = moment(f"{day[:4]}-{day[4:6]}-{day[6:8]} {row.get('Time', '')}") if len(day) == 8 else math.nan
    for column, cell in row.items():
        figure = parsed(cell) if column in DMON else None
        if figure is not None:
            name, factor = DMON[column]
            run.add(f"gpu/{gpu}/{name}", scaled(figure, factor), time=time)


def _add_table(run: RunBuilder, line: str, gpu: int, time: float, memory: re.Match[str]) -> None:
    found = {"memory_used_bytes": float(memory[1]) * 2.0**20, "memory_total_bytes": float(memory[2]) * 2.0**20}
    for name, (pattern, factor) in FIGURES.items():
        if (figure := pattern.search(line)) is not None:
            found[name] = scaled(float(figure[1]), factor)
    if (busy := BUSY.search(line, memory.end())) is not None:
        found["utilization_ratio"] = float(busy[1]) / 100
    for name, value in found.items():
        run.add(f"gpu/{gpu}/{name}", value, time=time)


STAMPED = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)?\s*,")
MEASURED = re.compile(r",\s*[-+.\d]+ (?:%|MiB|W|MHz)\s*(?:,|$)")
SAMPLE_ROWS = 4096
"""Number of rows without a header used to infer the columns."""
FACTS = {"name", "gpu_name", "driver_version"}
"""Queries that are facts of the log."""


def recognises(head: FileHead) -> bool:
    """Return whether a text is one of the forms that nvidia-smi writes."""
    first = head.first_lines(4)
    return bool(first) and (_is_csv(first[0]) or _is_text(first))


def _is_csv(line: str) -> bool:
    return header(line) is not None or (MEASURED.search(line) is not None and STAMPED.match(line.strip()) is not None)


def fill(path: str, run: RunBuilder) -> None:
    """Read the measurements of each GPU, in base units, by time; they have no step."""
    texts = _texts(path, run)
    first = next(texts, "")
    columns = header(first)
    if columns is not None:
        _add_rows(run, columns, texts)
    elif _is_csv(first) or not _is_text([first, *islice(texts, 3)]):
        _add_without_header(path, run)
    else:
        _add_texts(run, _texts(path, run))
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
    reads_on=False,
)
