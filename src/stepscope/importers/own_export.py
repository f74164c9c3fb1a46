"""Stepscope's own exports, read back bit for bit: CSV, JSON lines, the JSON document, Parquet and Arrow.

Ranks, attempts, sequences and names stay as written; other importers guess and clean up.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
from typing import TYPE_CHECKING, Any

from stepscope.core.redact import jsonable, redact
from stepscope.core.ring import NO_STEP
from stepscope.importers.imported import Imported
from stepscope.importers.numbered import Numbered, Row
from stepscope.importers.source import MOST_LINE_BYTES, document, json_value, lines, opened, unreadable
from stepscope.importers.words import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.importers.source import Head

NAME = "stepscope"
HEADER = "name,rank,attempt,seq,step,time,value"
KEYS = ("name", "rank", "attempt", "seq", "step", "time", "value")
PARQUET, ARROW = b"PAR1", b"ARROW1"
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_BATCH = 1 << 16


def recognises(head: Head) -> bool:
    """Return whether `stepscope export` has written a file."""
    return _reader(head.data) is not None


def _reader(data: bytes) -> Callable[[str, Numbered], dict[str, Any]] | None:
    begin = data[:4096]
    if begin.startswith(HEADER.encode()):
        return _read_csv
    if begin.startswith(b'{"stepscope":'):
        return _read_document
    if begin.startswith(b'{"name":') and all(f'"{key}":'.encode() in begin.partition(b"\n")[0] for key in KEYS):
        return _read_lines
    if begin.startswith(ARROW):
        return _read_arrow
    return _read_parquet if begin.startswith(PARQUET) else None


def read(path: str) -> Imported:
    """Return the run; from a JSON document also its description and events."""
    with opened(path) as stream:
        reader = _reader(stream.read(4096))
    if reader is None:
        raise unreadable(path, "it is no export of Stepscope", "export the run again")
    points = Numbered()
    facts = reader(path, points)
    return Imported(path, NAME, points.series(), redact(jsonable(facts)), points.notes())


def _read_csv(path: str, points: Numbered) -> dict[str, Any]:
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
                return {}
            name, rank, attempt, seq, step, time, value = cells
            points.add(
                Row(
                    unquoted(name),
                    int(rank),
                    int(attempt),
                    int(seq),
                    int(step) if step else NO_STEP,
                    moment(time),
                    float(value),
                )
            )
        except (ValueError, OverflowError, csv.Error):
            points.note("rows that are damaged, left out")


def unquoted(name: str) -> str:
    """Return a text without the quote that keeps a spreadsheet from running it."""
    return name[1:] if name.startswith("'") and name.lstrip("'").startswith(_FORMULA) else name


def _read_lines(path: str, points: Numbered) -> dict[str, Any]:
    for line in lines(path, points.note):
        entry = json_value(line)
        try:
            value = entry["nonfinite"] if entry["value"] is None else entry["value"]
            points.add(_row(entry, entry["seq"], entry["step"], entry["time"], value))
        except (ValueError, KeyError, TypeError, OverflowError):
            if line.strip():
                points.note("rows that are damaged, left out")
    return {}


def _row(entry: Any, seq: Any, step: Any, time: Any, value: Any) -> Row:
    place = NO_STEP if step is None else int(step)
    name = entry["name"]
    if not isinstance(name, str):
        raise TypeError("name")
    return Row(name, int(entry["rank"]), int(entry["attempt"]), int(seq), place, moment(time), float(value))


def _read_document(path: str, points: Numbered) -> dict[str, Any]:
    """Read the document line by line as it was written; a reformatted one as a whole."""
    facts: dict[str, Any] = {}
    events: list[Any] = []
    is_ours = True
    for line in lines(path, points.note):
        text = line.rstrip(",")
        if text.startswith('"run":'):
            facts.update(_object(json_value(text[6:])))
        elif text.startswith('{"name":') and text.endswith("]}"):
            _add_columns(json_value(text), points)
        elif text.startswith('{"time":'):
            events.append(json_value(text))
        elif not text.startswith(('{"stepscope":', '"metrics":', '{"name":', '"points":', "]", '"events":')) and text:
            is_ours = False
            break
    if not is_ours or "id" not in facts:
        return _read_whole(path, points)
    return _with_events(facts, events)


def _read_whole(path: str, points: Numbered) -> dict[str, Any]:
    points.clear()
    whole = _object(document(path))
    for part in whole.get("points") or []:
        _add_columns(part, points)
    return _with_events(_object(whole.get("run")), whole.get("events") or [])


def _with_events(facts: dict[str, Any], events: list[Any]) -> dict[str, Any]:
    created = moment(facts.get("created"))
    if math.isfinite(created):
        facts["created"] = created
    found = [{**event, "time": moment(event.get("time"))} for event in events if isinstance(event, dict)]
    return {**facts, "events": [event for event in found if math.isfinite(event["time"])]}


def _add_columns(part: Any, points: Numbered) -> None:
    try:
        columns = [part[key] for key in ("seq", "step", "time", "value")]
        for seq, step, time, value in zip(*columns, strict=True):
            points.add(_row(part, seq, step, time, value))
    except (ValueError, KeyError, TypeError, OverflowError):
        points.note("parts that are damaged, left out")


def _object(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _read_parquet(path: str, points: Numbered) -> dict[str, Any]:
    import duckdb

    query = (
        "SELECT name, rank, attempt, seq, coalesce(step, -9223372036854775808), epoch_us(time) / 1e6, value, "
        "run, project FROM read_parquet($1)"
    )
    facts: dict[str, Any] = {}
    try:
        with duckdb.connect(config={"threads": "1", "memory_limit": "512MB"}) as connection:
            connection.execute("SET enable_progress_bar = false")  # it would appear on stdout after two seconds
            found = connection.execute(query, [path])
            while rows := found.fetchmany(_BATCH):
                for *row, run, project in rows:
                    points.add(Row(*row))
                    facts = {"id": run, "project": project or ""}
    except duckdb.Error as error:
        cause = str(error).partition("\n")[0]
        raise unreadable(path, f"it is no Parquet file of points ({cause})", "export the run again") from error
    return facts


def _read_arrow(path: str, points: Numbered) -> dict[str, Any]:
    try:
        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise unreadable(path, "the package pyarrow is not there", "pip install pyarrow") from None
    try:
        with pa.OSFile(path) as stream, pa.ipc.open_file(stream) as reader:
            told = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
            for number in range(reader.num_record_batches):
                _add_batch(reader.get_batch(number), points)
    except (pa.ArrowException, KeyError, ValueError, TypeError, OSError) as error:
        cause = str(error).partition("\n")[0]
        raise unreadable(path, f"it is no Arrow file of points ({cause})", "export the run again") from error
    return {"id": told.get("run"), "name": told.get("run_name"), "project": told.get("project", "")}


def _add_batch(batch: Any, points: Numbered) -> None:
    columns = [batch.column(key) for key in KEYS]
    columns[5] = columns[5].cast("int64")
    for name, rank, attempt, seq, step, time, value in zip(*(column.to_pylist() for column in columns), strict=True):
        points.add(Row(name, rank, attempt, seq, NO_STEP if step is None else step, time / 1e6, value))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def of_logger(path: str) -> Imported:
    """Return the metrics of a `TrainingLogger`'s export: its raw values with their steps and times."""
    whole = _object(document(path))
    points = Numbered()
    moments = _object(whole.get("raw_times"))
    steps = _object(whole.get("raw_steps"))
    for name, values in _object(whole.get("raw_metrics")).items():
        if not isinstance(values, list):
            points.note("metrics without a list of values, left out")
            continue
        known = _list(steps.get(name)) or list(range(len(values)))
        when = _list(moments.get(name)) or [None] * len(values)
        for seq, (value, step, time) in enumerate(zip(values, known, when, strict=False)):
            try:
                figure = math.nan if value is None else float(value)
                points.add(Row(str(name), 0, 0, seq, NO_STEP if step is None else int(step), moment(time), figure))
            except (ValueError, TypeError, OverflowError):
                points.note("values that are no number, left out")
    kept = ("experiment_name", "metric_summaries", "score_distribution")
    facts = {"name": str(whole.get("experiment_name") or ""), **{key: whole[key] for key in kept if key in whole}}
    return Imported(path, "training_logger", points.series(), redact(jsonable(facts)), points.notes())


def recognises_logger(head: Head) -> bool:
    """Return whether a file is the export of a `TrainingLogger`: a document with its name and raw values."""
    if head.data.lstrip()[:1] != b"{" or b'"experiment_name"' not in head.data:
        return False
    try:
        return b'"raw_metrics"' in head.data or "metric_summaries" in json.loads(head.text)
    except (ValueError, RecursionError):
        return False
