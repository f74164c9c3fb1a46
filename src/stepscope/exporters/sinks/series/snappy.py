"""Snappy's block format without compression: one literal. Every reader takes it, and it costs a copy."""

from __future__ import annotations

import struct

from stepscope.exporters.protobuf import varint

LONG_LITERAL = 63 << 2
"""Tag of a literal whose length, less one, follows in four bytes."""


def literal_block(data: bytes) -> bytes:
    """Return data of less than 4 GiB as a Snappy block."""
    if not data:
        return varint(0)
    return b"".join((varint(len(data)), struct.pack("<BI", LONG_LITERAL, len(data) - 1), data))
