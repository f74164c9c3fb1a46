"""TensorBoard's event files, encoded by hand: records with checksums, in them events as protocol buffers.

TensorBoard keeps scalars as 32-bit floats. Where a value needs more digits, the exact one stands beside it in a field
that TensorBoard does not know and passes over, and that `stepscope import` reads.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from stepscope.core.tensorboard import EXACT_FIELD, masked_crc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VERSION = "brain.Event:2"
"""What the first event of a file says."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LENGTH, _CRC, _DOUBLE, _FLOAT = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<d"), struct.Struct("<f")
_LARGEST_FLOAT = 3.4028235677973366e38
"""From here on a 32-bit float is infinite."""


@lru_cache(maxsize=4096)
def head_of(length: int) -> bytes:
    """Return what stands before a record of so many bytes: the length and its checksum."""
    data = _LENGTH.pack(length)
    return data + _CRC.pack(masked_crc(data))


def record(content: bytes) -> bytes:
    """Return a record as it stands in the file."""
    return head_of(len(content)) + content + _CRC.pack(masked_crc(content))


def varint(number: int) -> bytes:
    """Return an integer of 64 bits, negative ones in ten bytes."""
    number &= 0xFFFFFFFFFFFFFFFF
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def key(number: int, kind: int) -> bytes:
    """Return the key of a field."""
    return varint(number << 3 | kind)


def block(number: int, data: bytes) -> bytes:
    """Return a field that holds bytes: a message or a text."""
    return key(number, BYTES) + varint(len(data)) + data


def double(number: int, value: float) -> bytes:
    """Return a field that holds a double."""
    return key(number, FIXED64) + _DOUBLE.pack(value)


def doubles(number: int, values: Iterable[float]) -> bytes:
    """Return a field that lists doubles."""
    return block(number, b"".join(map(_DOUBLE.pack, values)))


def first_event(time: float) -> bytes:
    """Return the record that an event file begins with."""
    return record(double(1, time) + block(3, VERSION.encode()))


def narrow(value: float) -> float:
    """Return a number as 32 bits keep it."""
    if abs(value) >= _LARGEST_FLOAT:
        return value if value in {float("inf"), float("-inf")} else float("inf") * (1 if value > 0 else -1)
    return float(_FLOAT.unpack(_FLOAT.pack(value))[0])


def scalar(tag: bytes, value: float) -> bytes:
    """Return a summary's value that is a number."""
    short = narrow(value)
    exact = b"" if short == value or value != value else double(EXACT_FIELD, value)  # noqa: PLR0124 - NaN
    return block(1, block(1, tag) + key(2, FIXED32) + _FLOAT.pack(short) + exact)


def histogram(tag: bytes, edges: Sequence[float], counts: Sequence[float], facts: Mapping[str, float]) -> bytes:
    """Return a summary's value that is a histogram.

    Args:
        tag: its name.
        edges: the upper end of each bucket.
        counts: how many values are in each.
        facts: min, max, num, sum and sum_squares.
    """
    order = ("min", "max", "num", "sum", "sum_squares")
    figures = b"".join(double(number, facts[name]) for number, name in enumerate(order, 1))
    return block(1, block(1, tag) + block(5, figures + doubles(6, edges) + doubles(7, counts)))


def event(time: float, step: int, values: Iterable[bytes]) -> bytes:
    """Return the record of one event: values of one step, at seconds since 1970."""
    return record(double(1, time) + key(2, VARINT) + varint(step) + block(5, b"".join(values)))
