"""Points as MLflow stores them: a name, a time in milliseconds, a step, a value, and whether that is NaN.

MLflow has a table with these five as its key, so that a point that comes twice is there once. Infinities are the
largest floats, and NaN is 0 with a mark.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.exporters.sinks.mlflow.names import valid_name
from stepscope.exporters.sinks.sink import SinkRefusesError, written_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from stepscope.exporters.sinks.sink import SinkBatch

    StoredPoint = tuple[str, int, int, float, bool]
    """Key, milliseconds since 1970 UTC, step, value, whether it is NaN."""

_Item = TypeVar("_Item")
LARGEST = sys.float_info.max
"""Stands for infinity."""
MOST_METRICS = 1000
"""Metrics in one request."""
MOST_UNCLEAR = 50
"""Metrics in one request of which MLflow may have some already: it takes long for each."""
MOST_OTHERS = 100
"""Parameters, or tags, in one request."""
MOST_BYTES = 900_000
"""Bytes of one request, a little less than MLflow takes."""


def stored_points(batch: SinkBatch, prefix: str) -> tuple[list[StoredPoint], int]:
    """Return the points of a batch as MLflow stores them, and how many were the same as another."""
    points = batch.points
    times = points.time // 1000
    if len(times) and int(times.min()) < 0:
        raise SinkRefusesError("MLflow takes no time before 1970")
    pairs = list(zip(points.name.tolist(), points.rank.tolist(), strict=True))
    names = {(code, rank): valid_name(written_name(prefix, points.names[code], rank)) for code, rank in set(pairs)}
    nan = np.isnan(points.value)
    rows = zip(
        [names[pair] for pair in pairs],
        times.tolist(),
        np.where(points.step == NO_STEP, 0, points.step).tolist(),
        np.where(nan, 0.0, np.clip(points.value, -LARGEST, LARGEST)).tolist(),
        nan.tolist(),
        strict=True,
    )
    different = list(dict.fromkeys(rows))
    return different, len(points) - len(different)


def newest(rows: Iterable[StoredPoint]) -> dict[str, StoredPoint]:
    """Return the point of each name that MLflow shows as its last: the greatest step, then time, then value."""
    found: dict[str, StoredPoint] = {}
    for row in rows:
        other = found.get(row[0])
        if other is None or (row[2], row[1], row[3]) > (other[2], other[1], other[3]):
            found[row[0]] = row
    return found


def metric_texts(rows: Iterable[StoredPoint]) -> Iterator[tuple[StoredPoint, str]]:
    """Yield points with their JSON for MLflow's `log-batch`."""
    names: dict[str, str] = {}
    for row in rows:
        key, time, step, value, is_nan = row
        name = names.get(key) or names.setdefault(key, json.dumps(key))
        number = repr(value) if -LARGEST < value < LARGEST and not is_nan else _special(value, is_nan=is_nan)
        yield row, f'{{"key":{name},"value":{number},"timestamp":{time},"step":{step}}}'


def _special(value: float, *, is_nan: bool) -> str:
    return '"NaN"' if is_nan else '"Infinity"' if value > 0 else '"-Infinity"'


def pair_texts(pairs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the names of parameters or tags with their JSON for MLflow's `log-batch`."""
    return ((key, json.dumps({"key": key, "value": value})) for key, value in pairs.items())


def log_batches(
    run_id: str, field: str, texts: Iterable[tuple[_Item, str]], most: int
) -> Iterator[tuple[bytes, list[_Item]]]:
    """Yield requests for `log-batch` with at most this many `metrics`, `params` or `tags`, and what is in each."""
    start = f'{{"run_id":{json.dumps(run_id)},"{field}":['
    items: list[_Item] = []
    held: list[str] = []
    size = 0
    for item, text in texts:
        if len(held) == most or (held and size + len(text) > MOST_BYTES):
            yield f"{start}{','.join(held)}]}}".encode(), items
            items, held, size = [], [], 0
        items.append(item)
        held.append(text)
        size += len(text) + 1
    if held:
        yield f"{start}{','.join(held)}]}}".encode(), items
