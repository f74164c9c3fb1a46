"""Decode many TensorBoard records at once: those of one size are a table of bytes, decoded column by column.

This serves the shape that `add_scalar` writes: a time, a step, and one tag with one number.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.core.tensorboard import crc_table, masked_crc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats, Integers
    from stepscope.importers.binary.gathered_points import GatheredPoints

    Rows = NDArray[np.uint8]
    """The content of records of one size, one per row."""

LONGEST = 256
"""Maximum bytes of a record that is decoded here."""
FEW = 8
"""Minimum number of records of one size; fewer are decoded faster one by one."""
MASK = np.uint32(0xA282EAD8)
"""Added to a checksum in event files, after a turn by 15 bits."""
TIME, STEP, SUMMARY, MESSAGE, NUMBER = 0x09, 0x10, 0x2A, 0x0A, 0x15
"""Keys on the wire: the number and type of a field. A summary's value and a value's tag have the same one."""
AFTER_TIME, LONGEST_STEP, NUMBER_BYTES = 9, 10, 5
"""Bytes of the time with its key, of the largest varint, and of the number with its key."""


def add_scalars(points: GatheredPoints, rows: Rows, places: Integers) -> NDArray[np.bool_]:
    """Add the records that have the shape of `add_scalar`; return which these are."""
    taken = np.zeros(len(rows), bool)
    size = rows.shape[1]
    step_ends = AFTER_TIME + 2 + (rows[:, AFTER_TIME + 1 :][:, :LONGEST_STEP] < 0x80).argmax(axis=1)
    step_ends[rows[:, AFTER_TIME] != STEP] = AFTER_TIME  # step 0 is not written
    for end in np.unique(step_ends).tolist():
        frame = _frame(size - end)
        tag_at, number_at = end + len(frame), size - NUMBER_BYTES
        fits = (step_ends == end) & (rows[:, 0] == TIME) & (rows[:, number_at] == NUMBER) & bool(frame)
        fits &= (rows[:, end:tag_at] == np.frombuffer(frame, np.uint8)).all(axis=1)
        fits &= (rows[:, end - 1] < 0x80) | (end == AFTER_TIME)
        if not fits.any():
            continue
        found = rows[fits]
        codes = _coded(found[:, tag_at:number_at], points)
        step = _varints(found[:, AFTER_TIME + 1 : end])
        time, value = _reals(found[:, 1:AFTER_TIME], "<f8"), _reals(found[:, number_at + 1 :], "<f4")
        points.add_columns(places[fits], codes, step, time, value)
        taken |= fits
    return taken


def _coded(tags: Rows, points: GatheredPoints) -> Integers:
    width, joined = tags.shape[1], tags.tobytes()
    texts = [joined[at : at + width] for at in range(0, len(joined), width)]
    codes = {text: points.code(text.decode("utf-8", "replace")) for text in set(texts)}
    return np.fromiter(map(codes.__getitem__, texts), np.int64, len(texts))


def checked(data: bytes, starts: Integers, sizes: Integers) -> Iterator[tuple[Rows, Integers]]:
    """Yield the records of each frequent size whose checksum is right, and their indices."""
    whole = np.frombuffer(data, np.uint8)
    for size in np.flatnonzero(np.bincount(sizes[sizes <= LONGEST]) >= FEW).tolist():
        indices = np.flatnonzero(sizes == size)
        rows = np.lib.stride_tricks.sliding_window_view(whole, size + 4)[starts[indices]]
        is_right = _crcs(rows[:, :size]) == _view(rows[:, size:], "<u4")
        if size > AFTER_TIME + NUMBER_BYTES:
            yield rows[is_right, :size], indices[is_right]


def _view(columns: Rows, kind: str) -> NDArray[Any]:
    return np.ascontiguousarray(columns).view(kind)[:, 0]


def _reals(columns: Rows, kind: str) -> Floats:
    return _view(columns, kind).astype(np.float64)


def _varints(columns: Rows) -> Integers:
    value = np.zeros(len(columns), np.uint64)
    for index in range(columns.shape[1]):
        value |= (columns[:, index] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * index)
    return value.view(np.int64)


@cache
def _frame(size: int) -> bytes:
    """Return the bytes between step and tag, if they, a tag and a number take `size` bytes; empty: they cannot."""
    for tag in range(max(1, size - 14), size - 10):
        value = _message(MESSAGE, bytes(tag)) + bytes(NUMBER_BYTES)
        frame = _message(SUMMARY, _message(MESSAGE, value))[: -tag - NUMBER_BYTES]
        if len(frame) + tag + NUMBER_BYTES == size:
            return frame
    return b""


def _message(key: int, content: bytes) -> bytes:
    """Return a field with text or a message of fewer than 2 ** 14 bytes."""
    size = len(content)
    return bytes([key, size] if size < 0x80 else [key, size & 0x7F | 0x80, size >> 7]) + content


def _crcs(rows: Rows) -> NDArray[np.uint32]:
    """Return the masked CRC-32C of each row: that of zeros, changed by each byte according to its distance."""
    size = rows.shape[1]
    value = np.full(len(rows), _crc_of_zeros(size), np.uint32)
    for index in range(size):
        value ^= _distance_tables()[size - 1 - index][rows[:, index]]
    masked: NDArray[np.uint32] = (value >> np.uint32(15) | value << np.uint32(17)) + MASK
    return masked


@cache
def _distance_tables() -> list[NDArray[np.uint32]]:
    """Return how each byte changes a checksum, for each number of bytes that follow it."""
    tables = [np.array(crc_table(), np.uint32)]
    for _ in range(LONGEST - 1):
        tables.append(tables[0][tables[-1] & np.uint32(0xFF)] ^ tables[-1] >> np.uint32(8))
    return tables


@cache
def _crc_of_zeros(size: int) -> int:
    turned = masked_crc(bytes(size)) - int(MASK) & 0xFFFFFFFF
    return (turned << 15 | turned >> 17) & 0xFFFFFFFF
