"""Drained records of one rank, as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stepscope.core.columns import SchemaTable


class Piece(NamedTuple):
    """Records one after another, and what is needed to read them."""

    rank: int
    data: bytes
    table: SchemaTable
    checked: bool
    """Whether every record ends with a checksum."""
