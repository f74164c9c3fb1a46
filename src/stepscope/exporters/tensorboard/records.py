"""TensorBoard's event files, encoded by hand: records with checksums that hold events as protocol buffers.

TensorBoard keeps scalars as 32-bit floats. If a value needs more digits, the exact one follows in a field that
TensorBoard ignores and `stepscope import` reads.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from stepscope.core.tensorboard import EXACT_FIELD, masked_crc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VERSION = "brain.Event:2"
"""In the first event of a file."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LENGTH, _CRC, _DOUBLE, _FLOAT = struct.Struct("<Q"), struct.Struct("<I"), struct.Struct("<d"), struct.Struct("<f")


@lru_cache(maxsize=4096)
def head_of(length: int) -> bytes:
    """Return the head of a record with so many bytes: the length and its checksum."""
    data = _LENGTH.pack(length)
    return data + _CRC.pack(masked_crc(data))


def record(content: bytes) -> bytes:
    """Return a record with its head and checksum."""
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


def first_event(time: float) -> bytes:
    """Return the record that an event file begins with."""
    return record(double(1, time) + block(3, VERSION.encode()))


def narrow(value: float) -> float:
    """Return a number rounded to a 32-bit float; one that is too large becomes infinite."""
    try:
        return float(_FLOAT.unpack(_FLOAT.pack(value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def scalar(tag: bytes, value: float) -> bytes:
    """Return a summary's value that is a number."""
    short = narrow(value)
    exact = b"" if short == value or value != value else double(EXACT_FIELD, value)  # noqa: PLR0124 - NaN
    return block(1, block(1, tag) + key(2, FIXED32) + _FLOAT.pack(short) + exact)


def histogram(tag: bytes, edges: Sequence[float], counts: Sequence[float], facts: Mapping[str, float]) -> bytes:
    """Return a summary's value that is a histogram: upper ends of the buckets, their counts, and five figures."""
    order = ("min", "max", "num", "sum", "sum_squares")
    content = b"".join(double(number, facts[name]) for number, name in enumerate(order, 1))
    for number, values in ((6, edges), (7, counts)):
        content += block(number, struct.pack(f"<{len(values)}d", *values))
    return block(1, block(1, tag) + block(5, content))


def place_of(rank: int) -> str:
    """Return the folder of a rank or, below 0, of a node.

    The machine's samples go to the file of rank 0: TensorBoard does not follow two growing files in one folder.
    """
    return f"rank{rank}" if rank > 0 else f"node{-1 - rank}" if rank < -1 else ""


def event(time: float, step: int, values: Iterable[bytes]) -> bytes:
    """Return the record of one event: values of one step, at seconds since 1970."""
    return record(double(1, time) + key(2, VARINT) + varint(step) + block(5, b"".join(values)))
