"""Shared by the writer and the readers of TensorBoard's event files: their checksum, and our own field in them."""

from __future__ import annotations

from functools import cache

EXACT_FIELD = 1000
"""Field of a summary value that holds the exact number as a double; TensorBoard reads its own, of 32 bits."""


@cache
def crc_table() -> tuple[int, ...]:
    """Return the table of CRC-32C (Castagnoli), by byte."""
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def masked_crc(data: bytes) -> int:
    """Return the checksum that event files use: CRC-32C, rotated and shifted."""
    table, value = crc_table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
