"""Write a run as TensorBoard's event files: a folder for `tensorboard --logdir`, one file for each rank and attempt.

A tag is the metric's name. Rank 0 and its machine are in the folder itself, others in `rank1`, `node1` and `attempt1`
below it: TensorBoard shows them as separate runs. A point without a step, such as a sample of the machine, gets the
seconds since the start of the run as its step. Scalars are encoded by columns: a million records in a second, not in
minutes.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.core.tensorboard import EXACT_FIELD, crc_table
from stepscope.exporters.files.portions import portions
from stepscope.exporters.protobuf import FIXED32, FIXED64, VARINT, block, key, varint
from stepscope.exporters.protobuf_columns import as_bytes, repeated, varint_widths, varints
from stepscope.exporters.tensorboard.records import first_event, head_of, place_of
from stepscope.store.points import Points, series_starts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.reader import Past

MICROSECOND = 1_000_000


def write(past: Past, metrics: Sequence[ExportedMetric], folder: Path) -> None:
    """Write the event files into a folder that is empty.

    Raises:
        OSError: they cannot be written.
    """
    created = int(past.meta.get("created") or 0)
    name = f"events.out.tfevents.{created // MICROSECOND:010d}.stepscope"
    known: set[Path] = set()
    for metric, points in portions(past, metrics):
        starts = [*series_starts(points).tolist(), len(points)]
        for first, last in itertools.pairwise(starts):
            part = points.select(slice(first, last))
            attempt = f"attempt{part.attempt[0]}" if part.attempt[0] else ""
            path = folder / place_of(int(part.rank[0])) / attempt / name
            if path not in known:
                known.add(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(first_event(created / MICROSECOND))
            _append(path, metric.written, part, created)


def _append(path: Path, tag: str, points: Points, created: int) -> None:
    seconds = np.maximum(points.time - created, 0) // MICROSECOND
    step = np.where(points.step == NO_STEP, seconds, points.step)
    with path.open("ab") as stream:
        for piece in scalars(tag, points.time / MICROSECOND, step, points.value):
            stream.write(piece)


CHUNK = 1 << 15
"""Records that are made at once."""


def scalars(
    tag: str, time: NDArray[np.float64], step: NDArray[np.int64], value: NDArray[np.float64]
) -> Iterator[bytes]:
    """Yield the records of a series in order, in pieces; `time` is in seconds since 1970."""
    name = tag.encode("utf-8", "replace")
    for start in range(0, len(value), CHUNK):
        part = slice(start, start + CHUNK)
        yield _chunk(name, time[part], step[part], value[part])


def _chunk(tag: bytes, time: NDArray[np.float64], step: NDArray[np.int64], value: NDArray[np.float64]) -> bytes:
    """Return the records of some points: those of equal length are made together and put back into order."""
    with np.errstate(over="ignore"):
        short = value.astype("<f4")
    exact = ~np.isnan(value) & (short.astype(np.float64) != value)
    width = varint_widths(step)
    kind = width * 2 + exact
    found: list[bytes] = [b""] * len(value)
    kinds = np.unique(kind)
    for one in kinds.tolist():
        chosen = np.flatnonzero(kind == one)
        rows = _rows(tag, one >> 1, time[chosen], step[chosen], short[chosen], value[chosen] if one & 1 else None)
        if len(kinds) == 1:
            return rows.tobytes()
        for place, row in zip(chosen.tolist(), rows, strict=True):
            found[place] = row.tobytes()
    return b"".join(found)


def _rows(
    tag: bytes,
    width: int,
    time: NDArray[np.float64],
    step: NDArray[np.int64],
    short: NDArray[np.float32],
    exact: NDArray[np.float64] | None,
) -> NDArray[np.uint8]:
    """Return records of one length as the rows of a matrix of bytes."""
    tail = key(EXACT_FIELD, FIXED64)
    message = block(1, tag) + key(2, FIXED32)
    message_size = len(message) + 4 + (len(tail) + 8 if exact is not None else 0)
    summary = key(1, 2) + varint(message_size)
    opening = key(5, 2) + varint(len(summary) + message_size) + summary + message
    same = partial(repeated, len(time))
    parts = [same(key(1, FIXED64)), as_bytes(time.astype("<f8")), same(key(2, VARINT)), varints(step, width)]
    parts += [same(opening), as_bytes(short)]
    if exact is not None:
        parts += [same(tail), as_bytes(exact.astype("<f8"))]
    content = np.hstack(parts)
    return np.hstack([same(head_of(content.shape[1])), content, as_bytes(_masked_crcs(content))])


def _masked_crcs(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the checksum of each row: a byte of all rows at a time."""
    table = np.array(crc_table(), np.uint32)
    value = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        value = table[(value ^ column) & np.uint32(0xFF)] ^ (value >> np.uint32(8))
    value = ~value
    masked: NDArray[np.uint32] = ((value >> np.uint32(15)) | (value << np.uint32(17))) + np.uint32(0xA282EAD8)
    return masked
