"""Runs as JSON lines: an object a point, strict JSON.

JSON has no NaN and no infinity: such a value is null, and "nonfinite" says which it was: "nan", "inf" or "-inf".
"""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, BinaryIO

from stepscope.core.ring import NO_STEP
from stepscope.exporters.files.csv import CHUNK, iso_times
from stepscope.exporters.files.portions import portions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.exporters.files.selection import Metric
    from stepscope.store.points import Points
    from stepscope.store.reader import Past


def write(past: Past, metrics: Sequence[Metric], stream: BinaryIO) -> None:
    """Write an object a point, in order of name, rank, attempt and seq; a point without a step has the step null."""
    for metric, points in portions(past, metrics):
        name = json.dumps(metric.written)
        for start in range(0, len(points), CHUNK):
            part = points.select(slice(start, start + CHUNK))
            stream.write("".join(f'{{"name":{name},{line}}}\n' for line in _lines(part)).encode())


def _lines(points: Points) -> Iterator[str]:
    steps = ["null" if step == NO_STEP else str(step) for step in points.step.tolist()]
    columns = (points.rank.tolist(), points.attempt.tolist(), points.seq.tolist(), steps, iso_times(points.time))
    for rank, attempt, seq, step, time, value in zip(*columns, points.value.tolist(), strict=True):
        number = f"{value!r}" if isfinite(value) else f'null,"nonfinite":"{value!r}"'
        yield f'"rank":{rank},"attempt":{attempt},"seq":{seq},"step":{step},"time":"{time}","value":{number}'
