"""The wire format of protocol buffers: the fields of a message, and the few value types that we need."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
NO_BYTES = b""


class Field(NamedTuple):
    """One field of a message on the wire."""

    number: int
    integer: int
    """Value of a varint, unsigned; 0 for any other kind."""
    data: bytes
    """Bytes of any other kind: a message, text or packed list; 4 or 8 of a fixed-width number."""

    @property
    def signed(self) -> int:
        """The varint as an int64."""
        return self.integer - (1 << 64) if self.integer >> 63 else self.integer

    @property
    def text(self) -> str:
        """The bytes as text."""
        return self.data.decode("utf-8", "replace")

    @property
    def real(self) -> float:
        """The fixed-width number as a float; 0.0 if it is not one."""
        if len(self.data) == 4:
            return float(_FLOAT.unpack(self.data)[0])
        return float(_DOUBLE.unpack(self.data)[0]) if len(self.data) == 8 else 0.0


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message; raises ValueError if it is truncated or not a message."""
    at, end = 0, len(message)
    while at < end:
        key = message[at]
        at += 1
        if key >= 0x80:
            key, at = varint(message, at - 1)
        kind = key & 7
        if kind == VARINT:
            value, at = varint(message, at)
            yield Field(key >> 3, value, NO_BYTES)
            continue
        if kind == BYTES:
            size, at = varint(message, at)
        elif kind in {FIXED64, FIXED32}:
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if size > end - at:
            raise ValueError("cut")
        yield Field(key >> 3, 0, message[at : at + size])
        at += size


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number of up to 64 bits at a position, and the position after it."""
    if at < len(message) and message[at] < 0x80:  # nearly all keys and lengths
        return message[at], at + 1
    value = shift = 0
    while shift < 70:
        if at >= len(message):
            raise ValueError("cut")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise ValueError("varint longer than 10 bytes")


def timestamp(message: bytes) -> float:
    """Return the time in a google.protobuf.Timestamp, in seconds since 1970; NaN if it has none."""
    parts = {field.number: field.signed for field in fields(message)}
    return parts[1] + parts.get(2, 0) / 1e9 if 1 in parts else math.nan
