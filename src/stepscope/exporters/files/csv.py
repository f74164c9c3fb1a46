"""Write a run as CSV, for spreadsheets and for exact reading: one line per point, or one line per step.

Floats read back to the same bits. A text that a spreadsheet would take for a formula gets a quote in front; numbers
stay numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.exporters.files.portions import BY_STEP, by_span, chunks, count, portions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.points import Points
    from stepscope.store.reader import Past

    Places = NDArray[np.int64]

COLUMNS = ("name", "rank", "attempt", "seq", "step", "time", "value")
CHUNK = 1 << 16
"""Lines that are made at once."""
KEY = ("rank", "attempt", "step")
CELLS = 1 << 20
"""Cells made at once, with one line per step."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_SPECIAL = frozenset('",\r\n')


def text_cell(text: str) -> str:
    """Return a text as a cell: never a formula, quoted where CSV requires it.

    A formula behind quotes gets one more, so that removing one always restores the text.
    """
    if text.lstrip("'").startswith(_FORMULA):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.intersection(text) or text != text.strip() else text


def iso_times(time: NDArray[np.int64]) -> list[str]:
    """Return microseconds since 1970 UTC as ISO 8601 with microseconds and Z."""
    moments = time.astype("datetime64[us]")
    return [str(text) for text in np.datetime_as_string(moments, unit="us", timezone="UTC")]


def write_long(past: Past, metrics: Sequence[ExportedMetric], stream: BinaryIO) -> None:
    """Write one line per point, ordered by name, rank, attempt and seq; a missing step is an empty cell."""
    stream.write((",".join(COLUMNS) + "\n").encode())
    for metric, points in chunks(portions(past, metrics), CHUNK):
        name = text_cell(metric.written)
        lines = (f"{name},{','.join(cells)},{value!r}\n" for *cells, value in cells_of(points, ""))
        stream.write("".join(lines).encode("utf-8", "replace"))


def cells_of(points: Points, no_step: str) -> Iterator[tuple[str, str, str, str, str, float]]:
    """Yield rank, attempt, seq, step and time of each point as text, and its value; a missing step is `no_step`."""
    steps = [no_step if step == NO_STEP else str(step) for step in points.step.tolist()]
    counts = (map(str, column.tolist()) for column in (points.rank, points.attempt, points.seq))
    return zip(*counts, steps, iso_times(points.time), points.value.tolist(), strict=True)


def write_wide(past: Past, metrics: Sequence[ExportedMetric], stream: BinaryIO) -> None:
    """Write a line for each (rank, attempt, step) and a column for each metric.

    Of several values of a metric in one step the last one is written; points without a step are left out.
    """
    header = [*KEY, *(text_cell(f"metric/{name}" if name in KEY else name) for _, name, _ in metrics)]
    stream.write((",".join(header) + "\n").encode("utf-8", "replace"))
    for points in by_span(past, {metric.recorded for metric in metrics}, BY_STEP):
        stream.writelines(line.encode() for line in _lines(points, metrics))
        count(len(points))


def _lines(points: Points, metrics: Sequence[ExportedMetric]) -> Iterator[str]:
    if not len(points):
        return
    steps, row = np.unique(points.step, return_inverse=True)
    values = [_last(points, row, metric) for metric in metrics]
    rank, attempt = int(points.rank[0]), int(points.attempt[0])
    height = max(1, CELLS // (len(metrics) + 1))
    for start in range(0, len(steps), height):
        part = steps[start : start + height]
        columns = [_cells(rows, value, start, len(part)) for rows, value in values]
        heads = [f"{rank},{attempt},{step}" for step in part.tolist()]
        yield "\n".join(map(",".join, zip(heads, *columns, strict=True))) + "\n"


def _last(points: Points, row: Places, metric: ExportedMetric) -> tuple[Places, NDArray[np.float64]]:
    """Return the rows in which a metric has a value, and the last value of each."""
    code = points.names.index(metric.recorded) if metric.recorded in points.names else -1
    mine = np.flatnonzero(points.name == code)
    mine = mine[np.argsort(row[mine], kind="stable")]
    at = row[mine]
    last = np.append(at[1:] != at[:-1], np.ones(min(len(at), 1), bool))
    value = points.value[mine[last]]
    return at[last], value if metric.factor == 1.0 else value * metric.factor


def _cells(rows: Places, value: NDArray[np.float64], start: int, height: int) -> list[str]:
    first, last = np.searchsorted(rows, [start, start + height])
    found = [""] * height
    for at, number in zip((rows[first:last] - start).tolist(), value[first:last].tolist(), strict=True):
        found[at] = repr(number)
    return found
