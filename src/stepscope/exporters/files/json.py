"""Write a run as one JSON document (the run, its metrics with units, points in columns, events), or as JSON lines.

Both are strict JSON in a stable order. The document has one part per line, so that a program can read it line by line.
Times are ISO 8601 in UTC with microseconds. JSON has no NaN and no infinity: in the document such a value is the text
"nan", "inf" or "-inf"; in JSON lines it is null, and "nonfinite" has the text.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.core.strict_json import strict
from stepscope.core.vocabulary import metric_of
from stepscope.exporters.files.csv import CHUNK as LINES
from stepscope.exporters.files.csv import cells_of, iso_times
from stepscope.exporters.files.portions import chunks, portions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.points import Points
    from stepscope.store.reader import Past

VERSION = 1
CHUNK = 1 << 12
"""Points of a line at most."""


def write(past: Past, metrics: Sequence[ExportedMetric], stream: BinaryIO) -> None:
    """Write the document; points are ordered by name, rank, attempt and seq."""
    stream.write(f'{{"stepscope":{VERSION},\n"run":{_text(_about(past))},\n'.encode())
    _list(stream, "metrics", (_declared(past, metric) for metric in metrics))
    stream.write(b",\n")
    columns = chunks(portions(past, metrics), CHUNK, by_series=True)
    _list(stream, "points", (_columns(json.dumps(metric.written), points) for metric, points in columns))
    stream.write(b",\n")
    _list(stream, "events", (_text(_dated(event)) for event in past.events()))
    stream.write(b"}\n")


def write_lines(past: Past, metrics: Sequence[ExportedMetric], stream: BinaryIO) -> None:
    """Write one JSON object per point, ordered by name, rank, attempt and seq; a missing step is null."""
    for metric, points in chunks(portions(past, metrics), LINES):
        head = f'{{"name":{json.dumps(metric.written)},"rank":'
        stream.write("".join(head + line for line in _objects(points)).encode())


def _objects(points: Points) -> Iterator[str]:
    for rank, attempt, seq, step, time, value in cells_of(points, "null"):
        number = f"{value!r}" if isfinite(value) else f'null,"nonfinite":"{value!r}"'
        yield f'{rank},"attempt":{attempt},"seq":{seq},"step":{step},"time":"{time}","value":{number}}}\n'


def _list(stream: BinaryIO, name: str, lines: Iterator[str]) -> None:
    stream.write(f'"{name}":['.encode())
    stream.writelines(
        (",\n" if number else "\n").encode() + line.encode("utf-8", "replace") for number, line in enumerate(lines)
    )
    stream.write(b"\n]")


def _about(past: Past) -> dict[str, Any]:
    created = past.meta.get("created")
    return {
        "id": past.id,
        "project": past.project,
        "created": _iso(created) if isinstance(created, int) else None,
        "state": past.state,
        "cause": past.cause,
        "config": past.config,
        **past.meta["labels"],
        "name": past.name,
    }


def _declared(past: Past, metric: ExportedMetric) -> str:
    known = past.metric(metric.recorded) if metric.factor == 1.0 else metric_of(metric.written)
    facts = {"unit": known.unit, "kind": known.kind, "help": known.help} if known is not None else {}
    return _text({"name": metric.written, **facts})


def _columns(name: str, points: Points) -> str:
    seq = ",".join(map(str, points.seq.tolist()))
    step = ",".join("null" if step == NO_STEP else str(step) for step in points.step.tolist())
    time = '","'.join(iso_times(points.time))
    value = ",".join(repr(value) if isfinite(value) else f'"{value!r}"' for value in points.value.tolist())
    head = f'"name":{name},"rank":{points.rank[0]},"attempt":{points.attempt[0]}'
    return f'{{{head},"seq":[{seq}],"step":[{step}],"time":["{time}"],"value":[{value}]}}'


def _dated(event: dict[str, Any]) -> dict[str, Any]:
    return {"time": "", **event} | {"time": _iso(round(event["time"] * 1e6))}


def _iso(microseconds: int) -> str:
    return iso_times(np.array([microseconds], np.int64))[0]


def _text(value: Any) -> str:
    return json.dumps(strict(value, repr), separators=(",", ":"), allow_nan=False)
