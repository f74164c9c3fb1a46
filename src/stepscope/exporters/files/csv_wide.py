"""Write a run as CSV with one line per step and one column per metric, one span of steps at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from stepscope.exporters.files.csv import text_cell
from stepscope.exporters.files.spans import BY_STEP, by_span, count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.exporters.files.selection import Metric
    from stepscope.store.points import Points
    from stepscope.store.reader import Past

KEY = ("rank", "attempt", "step")
CELLS = 1 << 20
"""Cells made at once."""


def write(past: Past, metrics: Sequence[Metric], stream: BinaryIO) -> None:
    """Write a line for each (rank, attempt, step) and a column for each metric.

    Of several values of a metric in one step the last one is written; points without a step are left out.
    """
    header = [*KEY, *(text_cell(f"metric/{name}" if name in KEY else name) for _, name, _ in metrics)]
    stream.write((",".join(header) + "\n").encode("utf-8", "replace"))
    for points in by_span(past, {metric.recorded for metric in metrics}, BY_STEP):
        stream.writelines(line.encode() for line in _lines(points, metrics))
        count(len(points))


def _lines(points: Points, metrics: Sequence[Metric]) -> Iterator[str]:
    """Yield the lines of one rank and attempt, in blocks."""
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


def _last(points: Points, row: NDArray[np.int64], metric: Metric) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows in which a metric has a value, and the last value of each."""
    code = points.names.index(metric.recorded) if metric.recorded in points.names else -1
    mine = np.flatnonzero(points.name == code)
    mine = mine[np.argsort(row[mine], kind="stable")]
    at = row[mine]
    last = np.append(at[1:] != at[:-1], np.ones(min(len(at), 1), bool))
    value = points.value[mine[last]]
    return at[last], value if metric.factor == 1.0 else value * metric.factor


def _cells(rows: NDArray[np.int64], value: NDArray[np.float64], start: int, height: int) -> list[str]:
    first, last = np.searchsorted(rows, [start, start + height])
    found = [""] * height
    for at, number in zip((rows[first:last] - start).tolist(), value[first:last].tolist(), strict=True):
        found[at] = repr(number)
    return found
