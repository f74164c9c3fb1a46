"""Runs as CSV, a line a point. Made for spreadsheets and for exact reading.

Floats are written so that they read back to the same bits. A text that a spreadsheet would take for a formula gets a
quote in front so that a spreadsheet runs no formula; numbers stay numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.exporters.files.portions import portions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from stepscope.exporters.files.selection import Metric
    from stepscope.store.points import Points
    from stepscope.store.reader import Past

COLUMNS = ("name", "rank", "attempt", "seq", "step", "time", "value")
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


def _lines(points: Points) -> Iterator[str]:
    steps = ["" if step == NO_STEP else str(step) for step in points.step.tolist()]
    columns = (points.rank.tolist(), points.attempt.tolist(), points.seq.tolist(), steps, iso_times(points.time))
    for rank, attempt, seq, step, time, value in zip(*columns, points.value.tolist(), strict=True):
        yield f"{rank},{attempt},{seq},{step},{time},{value!r}"
