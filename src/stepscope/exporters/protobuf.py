"""Protocol buffers, encoded by hand: fields, one at a time. Standard library only: the watcher writes some, too."""

from __future__ import annotations

import struct

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Kinds of fields on the wire."""
_DOUBLE = struct.Struct("<d")


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


def integer(number: int, value: int) -> bytes:
    """Return a field that holds an integer."""
    return key(number, VARINT) + varint(value)


def text(number: int, value: str) -> bytes:
    """Return a field that holds a text; what UTF-8 cannot encode becomes a question mark."""
    return block(number, value.encode("utf-8", "replace"))
