"""Protocol buffers, encoded by columns: one field of many messages at a time, as matrices of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def repeated(times: int, data: bytes) -> NDArray[np.uint8]:
    """Return a matrix with the same bytes in each row."""
    return np.broadcast_to(np.frombuffer(data, np.uint8), (times, len(data)))


def as_bytes(column: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return a matrix with the bytes of each number in a row."""
    return np.ascontiguousarray(column).view(np.uint8).reshape(len(column), column.dtype.itemsize)


def varint_widths(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes each number takes as a varint: 1 to 10, negative ones 10."""
    left = numbers.astype(np.uint64)
    width = np.ones(len(numbers), np.int64)
    for _ in range(9):
        left = left >> np.uint64(7)
        width += left > 0
    return width


def varints(numbers: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Return numbers that take `width` bytes as varints, one in each row."""
    left = numbers.astype(np.uint64)
    found = np.empty((len(numbers), width), np.uint8)
    for place in range(width):
        more = 0x80 if place < width - 1 else 0
        found[:, place] = (left & np.uint64(0x7F)).astype(np.uint8) | more
        left = left >> np.uint64(7)
    return found


def placed(buffer: NDArray[np.uint8], starts: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
    """Write each row of a matrix into a buffer, where it starts."""
    buffer[starts[:, None] + np.arange(rows.shape[1])] = rows
