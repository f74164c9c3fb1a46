"""Runs as CSV: a line a point, or a line a step with a column a metric. Made for spreadsheets and for exact reading.

Floats are written so that they read back to the same bits. A text that a spreadsheet would take for a formula gets a
quote in front (rule S26); numbers stay numbers.
"""

from __future__ import annotations

import itertools
import tempfile
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from stepscope.exporters.selection import portions
from stepscope.store.points import NO_STEP, Points, series_starts

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


def text_cell(text: str) -> str:
    """Return a text as a cell: never a formula, quoted where CSV asks for it.

    A formula behind quotes gets one more, so that taking one off always gives the text back.
    """
    if text.lstrip("'").startswith(_FORMULA):
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
    rows = _Rows()
    for _, points in portions(past, metrics):
        rows.add(points)
    header = [*KEY, *(text_cell(f"metric/{name}" if name in KEY else name) for _, name, _ in metrics)]
    stream.write((",".join(header) + "\n").encode("utf-8", "replace"))
    if not len(rows):
        return
    shape = (len(metrics), len(rows))
    with tempfile.TemporaryFile() as values, tempfile.TemporaryFile() as marks:
        value = np.memmap(values, np.float64, "w+", shape=shape)
        there = np.memmap(marks, np.bool_, "w+", shape=shape)
        for number, (_, points) in enumerate(portions(past, metrics)):
            for place, last in rows.places(points):
                value[number, place], there[number, place] = last, True
        start = 0
        for key, steps in rows.parts():
            part = slice(start, start + len(steps))
            stream.write("".join(_wide_lines(key, steps, value[:, part], there[:, part])).encode())
            start += len(steps)


class _Rows:
    """The rows of a wide table: the steps of each rank and attempt."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], NDArray[np.int64]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._steps.values()))

    def add(self, points: Points) -> None:
        """Make room for the steps of one metric."""
        for key, part in _by_attempt(points):
            known = self._steps.get(key)
            new = np.unique(part.step)
            if known is None or not np.array_equal(known, new):
                self._steps[key] = new if known is None else np.union1d(known, new)

    def parts(self) -> Iterator[tuple[tuple[int, int], NDArray[np.int64]]]:
        """Return rank and attempt, and some of their steps, in order."""
        for key, steps in sorted(self._steps.items()):
            for start in range(0, len(steps), CHUNK):
                yield key, steps[start : start + CHUNK]

    def places(self, points: Points) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Return the rows in which one metric has a value, and the last value of each."""
        lengths = [len(steps) for _, steps in sorted(self._steps.items())]
        starts = dict(zip(sorted(self._steps), np.cumsum([0, *lengths]).tolist(), strict=False))
        for key, part in _by_attempt(points):
            known = self._steps.get(key, part.step[:0])
            kept = part.select(np.isin(part.step, known))  # a live run may have gone on since its steps were gathered
            order = np.argsort(kept.step, kind="stable")
            step, value = kept.step[order], kept.value[order]
            last = np.append(step[1:] != step[:-1], np.ones(min(len(step), 1), bool))
            yield starts.get(key, 0) + np.searchsorted(known, step[last]), value[last]


def _by_attempt(points: Points) -> Iterator[tuple[tuple[int, int], Points]]:
    """Return the points of one metric that have a step, by rank and attempt."""
    points = points.select(points.step != NO_STEP)
    for start, end in itertools.pairwise([*series_starts(points).tolist(), len(points)]):
        yield (int(points.rank[start]), int(points.attempt[start])), points.select(slice(start, end))


def _lines(points: Points) -> Iterator[str]:
    steps = ["" if step == NO_STEP else str(step) for step in points.step.tolist()]
    columns = (points.rank.tolist(), points.attempt.tolist(), points.seq.tolist(), steps, iso_times(points.time))
    for rank, attempt, seq, step, time, value in zip(*columns, points.value.tolist(), strict=True):
        yield f"{rank},{attempt},{seq},{step},{time},{value!r}"


def _wide_lines(
    key: tuple[int, int], steps: NDArray[np.int64], value: NDArray[np.float64], there: NDArray[np.bool_]
) -> Iterator[str]:
    columns = [
        [repr(number) if known else "" for number, known in zip(numbers.tolist(), marks.tolist(), strict=True)]
        for numbers, marks in zip(value, there, strict=True)
    ]
    for step, *cells in zip(steps.tolist(), *columns, strict=True):
        yield ",".join([f"{key[0]},{key[1]},{step}", *cells]) + "\n"
