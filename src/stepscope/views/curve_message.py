"""Encode curves as binary messages: a JSON head, then columns that a browser uses as typed arrays without a copy.

A message is `SSB1`, the length of the head (u32), the head padded with spaces to a multiple of 8, and the columns, all
little-endian. Missing numbers (such as the step of a machine sample) are NaN.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.store.curves import spans
from stepscope.store.points import Points

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats, Integers
    from stepscope.store.curves import Curves
    from stepscope.store.pyramid import Blocks

MAGIC = b"SSB1"


def message(head: dict[str, Any], columns: Sequence[bytes]) -> bytes:
    """Return a message of a head and its columns."""
    text = msgspec.json.encode(head)
    text += b" " * (-(8 + len(text)) % 8)
    return b"".join((MAGIC, struct.pack("<I", len(text)), text, *columns))


def encode_curves(runs: Sequence[tuple[str, Curves]]) -> bytes:
    """Return curves of several runs, given as (key of the run, its curves), as one message."""
    heads: list[dict[str, Any]] = []
    columns: list[bytes] = []
    at = 0
    for run, curves in runs:
        for part in (curves.points, curves.blocks):
            for first, last in spans(part):
                row = part.select(slice(first, last))
                head, data = _curve(row, folded=curves.folded)
                size = sum(map(len, data))
                heads.append({"run": run, **head, "at": at, "bytes": size})
                columns += data
                at += size
    return message({"cursor": None, "curves": heads}, columns)


def _curve(row: Points | Blocks, *, folded: bool) -> tuple[dict[str, Any], list[bytes]]:
    head: dict[str, Any] = {
        "name": row.names[int(row.name[0])],
        "rank": _rank(int(row.rank[0]), folded=folded),
        "attempt": int(row.attempt[0]),
        "n": len(row),
    }
    if isinstance(row, Points):
        head |= {"kind": "points", "points": len(row), "seq": int(row.seq.max())}
        return head, [f64(steps(row.step)), f64(row.time / 1e6), f64(row.value)]
    head |= {"kind": "buckets", "points": int(row.count.sum()), "seq": int(row.last_seq.max())}
    return head, [*bucket_columns(row), _u32(row.count), _u32(row.nonfinite)]


def _rank(number: int, *, folded: bool) -> int | None:
    """Return the rank of a curve; None for that of all ranks. Among folded curves, others have their rank + 1."""
    if not folded:
        return number
    return number - 1 if number else None


def bucket_columns(row: Blocks) -> list[bytes]:
    """Return the columns step, time, mean, min, max, last, min_step and max_step of buckets."""
    values = (row.mean, row.min, row.max, row.last)
    places = (steps(row.min_step), steps(row.max_step))
    return [f64(steps(row.last_step)), f64(row.last_time / 1e6), *map(f64, values), *map(f64, places)]


def encode_frame(head: dict[str, Any], rows: Blocks, curve: NDArray[np.uint32]) -> bytes:
    """Return the new rows of a live run: one bucket per row, with the number of its curve."""
    whole = [*bucket_columns(rows), f64(rows.last_seq.astype(np.float64))]
    counts = [curve.astype("<u4").tobytes(), _u32(rows.count), _u32(rows.nonfinite)]
    return message({**head, "n": len(rows)}, [*whole, *counts, bytes(4 * (len(rows) % 2))])


def steps(column: Integers) -> Floats:
    """Return steps as floats; NaN for rows without a step."""
    return np.where(column == NO_STEP, np.nan, column.astype(np.float64))


def f64(column: NDArray[Any]) -> bytes:
    """Return the bytes of a column of 64-bit floats."""
    return column.astype("<f8", copy=False).tobytes()


def _u32(column: Integers) -> bytes:
    return np.minimum(column, 2**32 - 1).astype("<u4").tobytes()
