"""Stepscope's own exports, read back bit for bit: CSV, JSON lines, the JSON document, Parquet and Arrow.

Ranks, attempts, sequences and names stay as written; other importers guess and clean up.
"""

from __future__ import annotations

import contextlib
import csv
import math
from array import array
from typing import TYPE_CHECKING, Any

from stepscope.importers import parquet
from stepscope.importers.run_builder import ImportFormat, RunBuilder
from stepscope.importers.source import MOST_LINE_BYTES, FileHead, document, json_value, lines, opened, unreadable
from stepscope.importers.words import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


KEYS = ("name", "rank", "attempt", "seq", "step", "time", "value")
ARROW = b"ARROW1"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def recognises(head: FileHead) -> bool:
    """Return whether `stepscope export` has written a file."""
    columns = parquet.columns(head)
    return _reader(head.data) is not None and (not columns or {*KEYS} <= {*columns})


def _reader(data: bytes) -> Callable[[str, RunBuilder], None] | None:
    begin = data[:4096]
    if begin.startswith(",".join(KEYS).encode()):
        return _read_csv
    if begin.startswith(b'{"stepscope":'):
        return _read_document
    if begin.startswith(b'{"name":') and all(f'"{key}":'.encode() in begin.partition(b"\n")[0] for key in KEYS):
        return _read_lines
    if begin.startswith(ARROW):
        return _read_arrow
    return _read_parquet if begin.startswith(parquet.MAGIC) else None


def fill(path: str, run: RunBuilder) -> None:
    """Read the points; from a JSON document also the run's description and events."""
    with opened(path) as stream:
        reader = _reader(stream.read(4096))
    if reader is None:
        raise unreadable(path, "it is no export of Stepscope", "export the run again")
    reader(path, run)


def add_point(
    run: RunBuilder, name: Any, rank: int, attempt: int, seq: int, step: int | None, time: float, value: float
) -> None:
    """Add one point, or raise TypeError, ValueError or OverflowError if it is invalid; time in seconds since 1970."""
    if not isinstance(name, str) or not name or not -(2**31) <= rank < 2**31 or not 0 <= attempt < 2**31:
        raise ValueError("rank, attempt or name")
    array("q", (seq, step or 0))  # raises before anything is added
    run.add(name, value, step, time, rank, attempt, seq)


def _read_csv(path: str, run: RunBuilder) -> None:
    def texts() -> Iterator[str]:
        # With line ends: a name may contain one, and the CSV reader must see it.
        with opened(path) as stream:
            while line := stream.readline(MOST_LINE_BYTES):
                yield line.decode("utf-8", "replace")

    rows = csv.reader(texts())
    with contextlib.suppress(csv.Error):
        next(rows, None)  # the header
    while True:
        try:
            cells = next(rows, None)
            if cells is None:
                return
            name, rank, attempt, seq, step, time, value = cells
            numbers = int(rank), int(attempt), int(seq), int(step) if step else None
            add_point(run, unquoted(name), *numbers, moment(time), float(value))
        except (ValueError, OverflowError, csv.Error):
            run.note("rows that are damaged, left out")


def unquoted(name: str) -> str:
    """Return a text without the quote that keeps a spreadsheet from running it."""
    return name[1:] if name.startswith("'") and name.lstrip("'").startswith(_FORMULA) else name


def _read_lines(path: str, run: RunBuilder) -> None:
    for line in lines(path, run.note):
        entry = json_value(line)
        try:
            value = entry["nonfinite"] if entry["value"] is None else entry["value"]
            _add_entry(run, entry, entry["seq"], entry["step"], entry["time"], value)
        except (ValueError, KeyError, TypeError, OverflowError):
            if line.strip():
                run.note("rows that are damaged, left out")


def _add_entry(run: RunBuilder, entry: Any, seq: Any, step: Any, time: Any, value: Any) -> None:
    numbers = int(entry["rank"]), int(entry["attempt"]), int(seq), None if step is None else int(step)
    add_point(run, entry["name"], *numbers, moment(time), float(value))


def _read_document(path: str, run: RunBuilder) -> None:
    """Read the document line by line as it was written; decode a reformatted one at once."""
    facts: dict[str, Any] = {}
    events: list[Any] = []
    for line in lines(path, run.note):
        text = line.rstrip(",")
        if text.startswith('"run":'):
            facts.update(_object(json_value(text[6:])))
        elif text.startswith('{"name":') and text.endswith("]}"):
            _add_columns(json_value(text), run)
        elif text.startswith('{"time":'):
            events.append(json_value(text))
        elif not text.startswith(('{"stepscope":', '"metrics":', '{"name":', '"points":', "]", '"events":')) and text:
            facts.clear()
            break
    if "id" not in facts:
        run.columns.clear()
        content = _object(document(path))
        for part in content.get("points") or []:
            _add_columns(part, run)
        facts, events = _object(content.get("run")), content.get("events") or []
    created = moment(facts.get("created"))
    if math.isfinite(created):
        facts["created"] = created
    dated = [{**event, "time": moment(event.get("time"))} for event in events if isinstance(event, dict)]
    run.facts = {**facts, "events": [event for event in dated if math.isfinite(event["time"])]}


def _add_columns(part: Any, run: RunBuilder) -> None:
    try:
        columns = [part[key] for key in ("seq", "step", "time", "value")]
        for seq, step, time, value in zip(*columns, strict=True):
            _add_entry(run, part, seq, step, time, value)
    except (ValueError, KeyError, TypeError, OverflowError):
        run.note("parts that are damaged, left out")


def _object(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _read_parquet(path: str, run: RunBuilder) -> None:
    query = "SELECT name, rank, attempt, seq, step, epoch_us(time) / 1e6, value, run, project FROM read_parquet($1)"
    for rows in parquet.rows(path, query, "export the run again"):
        for row in rows:
            add_point(run, *row[:7])
        run.facts = {"id": rows[0][7], "project": rows[0][8] or ""}


def _read_arrow(path: str, run: RunBuilder) -> None:
    try:
        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise unreadable(path, "the package pyarrow is not there", "pip install pyarrow") from None
    try:
        with pa.OSFile(path) as stream, pa.ipc.open_file(stream) as reader:
            about = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                columns = [batch.column(key) for key in KEYS]
                columns[5] = columns[5].cast("int64")
                rows = zip(*(column.to_pylist() for column in columns), strict=True)
                for name, rank, attempt, seq, step, time, value in rows:
                    add_point(run, name, rank, attempt, seq, step, time / 1e6, value)
    except (pa.ArrowException, KeyError, ValueError, TypeError, OSError) as error:
        cause = str(error).partition("\n")[0]
        raise unreadable(path, f"it is no Arrow file of points ({cause})", "export the run again") from error
    run.facts = {"id": about.get("run"), "name": about.get("run_name"), "project": about.get("project", "")}


FORMAT = ImportFormat("stepscope", "what `stepscope export` writes", recognises, fill, is_ours=True, reads_on=False)
