"""Runs as CSV: a line a point, or a line a step with a column a metric. Made for spreadsheets and for exact reading.

Floats are written so that they read back to the same bits. A text that a spreadsheet would take for a formula gets a
quote in front (rule S26); numbers stay numbers.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from stepscope.exporters.selection import portions
from stepscope.store.points import NO_STEP, Points

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.exporters.selection import Metric
    from stepscope.store.reader import Past

COLUMNS = ("name", "rank", "attempt", "seq", "step", "time", "value")
KEY = ("rank", "attempt", "step")
CHUNK = 1 << 16
"""Lines that are made at once."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_SPECIAL = frozenset('",\r\n')
_KEY = np.dtype([(column, np.int64) for column in KEY])


def text_cell(text: str) -> str:
    """Return a text as a cell: never a formula, quoted where CSV asks for it."""
    if text.startswith(_FORMULA):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.intersection(text) or text != text.strip() else text


def iso_times(time: NDArray[np.int64]) -> list[str]:
    """Return microseconds since 1970 UTC as ISO 8601 with microseconds and Z."""
    moments = time.astype("datetime64[us]")
    return [str(text) for text in np.datetime_as_string(moments, unit="us", timezone="UTC")]


def write_long(past: Past, metrics: Sequence[Metric], stream: BinaryIO) -> None:
    """Write a line a point, in order of name, rank, attempt and seq; a point without a step has an empty cell."""
    stream.write((",".join(COLUMNS) + "\n").encode())
    for metric, points in portions(past, metrics):
        name = text_cell(metric.written)
        for start in range(0, len(points), CHUNK):
            part = points.select(slice(start, start + CHUNK))
            stream.write("".join(f"{name},{line}\n" for line in _lines(part)).encode("utf-8", "replace"))


def write_wide(past: Past, metrics: Sequence[Metric], stream: BinaryIO) -> None:
    """Write a line for each (rank, attempt, step) and a column for each metric.

    Of several values of a metric in one step the last is written; points without a step are left out. What does not
    fit into memory lies in a temporary file meanwhile.
    """
    keys = _keys(past, metrics)
    header = [*KEY, *(text_cell(f"metric/{name}" if name in KEY else name) for _, name, _ in metrics)]
    stream.write((",".join(header) + "\n").encode("utf-8", "replace"))
    if not len(keys):
        return
    shape = (len(metrics), len(keys))
    with tempfile.TemporaryFile() as values, tempfile.TemporaryFile() as marks:
        value = np.memmap(values, np.float64, "w+", shape=shape)
        there = np.memmap(marks, np.bool_, "w+", shape=shape)
        for row, (_, points) in enumerate(portions(past, metrics)):
            place, last = _last_of_each(keys, points)
            value[row, place], there[row, place] = last, True
        for start in range(0, len(keys), CHUNK):
            part = slice(start, start + CHUNK)
            stream.write("".join(_wide_lines(keys[part], value[:, part], there[:, part])).encode())


def _lines(points: Points) -> Iterator[str]:
    steps = ["" if step == NO_STEP else str(step) for step in points.step.tolist()]
    columns = (points.rank.tolist(), points.attempt.tolist(), points.seq.tolist(), steps, iso_times(points.time))
    for rank, attempt, seq, step, time, value in zip(*columns, points.value.tolist(), strict=True):
        yield f"{rank},{attempt},{seq},{step},{time},{value!r}"


def _key_of(points: Points) -> NDArray[np.void]:
    key = np.empty(len(points), _KEY)
    for column in KEY:
        key[column] = getattr(points, column)
    return key


def _keys(past: Past, metrics: Sequence[Metric]) -> NDArray[np.void]:
    """Return each (rank, attempt, step) that any of the metrics has, in order."""
    found = np.empty(0, _KEY)
    for _, points in portions(past, metrics):
        found = np.union1d(found, _key_of(points.select(points.step != NO_STEP)))
    return found


def _last_of_each(keys: NDArray[np.void], points: Points) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the places of the keys that points of one metric have, and the last value of each."""
    points = points.select(points.step != NO_STEP)
    wanted = _key_of(points)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    known = keys[place] == wanted  # a live run may have gone on since the keys were gathered
    place, value = place[known], points.value[known]
    order = np.argsort(place, kind="stable")
    place, value = place[order], value[order]
    last = np.append(place[1:] != place[:-1], np.ones(min(len(place), 1), bool))
    return place[last], value[last]


def _wide_lines(keys: NDArray[np.void], value: NDArray[np.float64], there: NDArray[np.bool_]) -> Iterator[str]:
    columns = [
        [repr(number) if known else "" for number, known in zip(numbers.tolist(), marks.tolist(), strict=True)]
        for numbers, marks in zip(value, there, strict=True)
    ]
    for key, *cells in zip(keys.tolist(), *columns, strict=True):
        yield ",".join([*map(str, key), *cells]) + "\n"
