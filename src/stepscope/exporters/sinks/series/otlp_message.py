"""Messages of OTLP: points of labelled series as an ExportMetricsServiceRequest, encoded by columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.exporters.protobuf import BYTES, FIXED64, VARINT, block, key, text, varint
from stepscope.exporters.protobuf_columns import as_bytes, placed, varint_widths, varints
from stepscope.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.exporters.sinks.series.labelled import LabelledSeries

SCOPE = "stepscope"
UNITS = {
    "seconds": "s",
    "milliseconds": "ms",
    "bytes": "By",
    "bytes/second": "By/s",
    "MiB": "MiBy",
    "GiB": "GiBy",
    "ratio": "1",
    "percent": "%",
    "celsius": "Cel",
    "watts": "W",
    "joules": "J",
    "hertz": "Hz",
    "volts": "V",
}
"""Our units as OpenTelemetry writes them."""
KEPT = 1 << 14
"""Series whose encoded labels are kept."""
_TIME, _VALUE = key(3, FIXED64), key(4, FIXED64)


@dataclass(frozen=True)
class DataPoints:
    """Points as columns, in any order."""

    series: NDArray[np.int64]
    """Number of the series."""
    time: NDArray[np.int64]
    """Nanoseconds since 1970 UTC."""
    value: NDArray[np.float64]
    step: NDArray[np.int64] | None = None
    """Step, or NO_STEP; None if steps are not sent."""

    def select(self, index: NDArray[Any]) -> DataPoints:
        """Return the points at these places."""
        step = None if self.step is None else self.step[index]
        return DataPoints(self.series[index], self.time[index], self.value[index], step)


def attribute(name: str, value: str) -> bytes:
    """Return a KeyValue with a text."""
    return text(1, name) + block(2, text(1, value))


def request(resource: Mapping[str, str], table: Sequence[LabelledSeries], points: DataPoints) -> bytes:
    """Return a request with all points as gauges, those of one name together."""
    content = block(1, b"".join(block(1, attribute(name, value)) for name, value in resource.items()))
    scope = block(1, text(1, SCOPE) + text(2, __version__))
    return block(1, content + block(2, scope + _metrics(table, points)))


def _metrics(table: Sequence[LabelledSeries], points: DataPoints) -> bytes:
    """Return the metrics as fields of their scope. Points of one series and width of step are encoded together."""
    used = np.unique(points.series)
    ordered = sorted(used.tolist(), key=lambda number: (table[number].name, number))
    place = np.zeros(len(table), np.int64)
    place[ordered] = np.arange(len(ordered))
    width = np.zeros(len(points.series), np.int64)
    if points.step is not None:
        width = np.where(points.step == NO_STEP, 0, varint_widths(points.step))
    group = place[points.series] * 16 + width
    points = points.select(np.argsort(group, kind="stable"))
    groups, counts = np.unique(group, return_counts=True)
    templates: list[tuple[bytes, int]] = []
    parts: dict[str, tuple[LabelledSeries, list[bytes]]] = {}
    for code, count in zip(groups.tolist(), counts.tolist(), strict=True):
        series = table[ordered[code >> 4]]
        template = _template(series, code & 15)
        templates.append(template)
        parts.setdefault(series.name, (series, []))[1].append(template[0] * count)
    filled = memoryview(
        _filled(points, groups & 15, counts, templates, [piece for _, own in parts.values() for piece in own])
    )
    pieces: list[bytes | memoryview] = []
    start = 0
    for series, own in parts.values():
        size = sum(map(len, own))
        about = _about(series)
        gauge = key(5, BYTES) + varint(size)
        pieces += (key(2, BYTES), varint(len(about) + len(gauge) + size), about, gauge, filled[start : start + size])
        start += size
    return b"".join(pieces)


@lru_cache(maxsize=KEPT)
def _template(series: LabelledSeries, width: int) -> tuple[bytes, int]:
    """Return a point whose numbers are zero still, and where its content starts; the step is at the end."""
    hole = bytes(8)
    labels = b"".join(block(7, attribute(name, value)) for name, value in series.labels if name != "__name__")
    step = block(7, text(1, "step") + block(2, key(3, VARINT) + bytes(width))) if width else b""
    body = _TIME + hole + _VALUE + hole + labels + step
    head = key(1, BYTES) + varint(len(body))
    return head + body, len(head)


@lru_cache(maxsize=KEPT)
def _about(series: LabelledSeries) -> bytes:
    """Return what a metric begins with: name, help and unit."""
    return text(1, series.name) + text(2, series.help) + text(3, UNITS.get(series.unit, ""))


def _filled(
    points: DataPoints,
    widths: NDArray[np.int64],
    counts: NDArray[np.int64],
    templates: Sequence[tuple[bytes, int]],
    pieces: Sequence[bytes],
) -> bytearray:
    """Return the templates, repeated for each of their points, with the numbers of the points in them."""
    found = bytearray().join(pieces)
    buffer = np.frombuffer(found, np.uint8)
    sizes = np.repeat([len(data) for data, _ in templates], counts)
    ends = np.cumsum(sizes)
    inside = ends - sizes + np.repeat([head for _, head in templates], counts)
    placed(buffer, inside + 1, as_bytes(points.time.astype("<i8")))
    placed(buffer, inside + 10, as_bytes(points.value.astype("<f8")))
    if points.step is not None:
        width = np.repeat(widths, counts)
        for one in np.unique(widths[widths > 0]).tolist():
            chosen = np.flatnonzero(width == one)
            placed(buffer, ends[chosen] - one, varints(points.step[chosen], one))
    return found
