"""Write a run as CSV, one line per point, for spreadsheets and for exact reading.

Floats are written so that they read back to the same bits. A text that a spreadsheet would take for a formula gets a
quote in front so that a spreadsheet runs no formula; numbers stay numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.exporters.files.portions import chunks, portions

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


def write_long(past: Past, metrics: Sequence[Metric], stream: BinaryIO) -> None:
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
