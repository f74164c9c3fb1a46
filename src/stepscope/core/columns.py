"""The columns of a ring's rows: their names, in an append-only file next to the ring."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, NamedTuple

FRAME = struct.Struct("<II")
"""Before each entry: length in bytes and crc32 of the JSON that follows."""


class RowSchema(NamedTuple):
    """The columns of a kind of row: names, and per column 'd' (float) or 'q' (duration in ns)."""

    id: int
    names: tuple[str, ...]
    kinds: str


class SchemaTable:
    """All declarations so far: row schemas by id, and the names of (name id, value) pairs."""

    def __init__(self) -> None:
        """Start with nothing declared."""
        self.schemas: dict[int, RowSchema] = {}
        self.names: list[str] = []

    def add(self, entry: dict[str, Any]) -> None:
        """Add one entry of the file; an entry of an unknown kind is ignored."""
        names = [str(name) for name in entry.get("names", ())]
        if "id" in entry:
            schema = RowSchema(int(entry["id"]), tuple(names), str(entry["kinds"]))
            self.schemas[schema.id] = schema
        elif entry.get("first") == len(self.names):
            self.names.extend(names)

    def entries(self) -> list[bytes]:
        """Return entries that declare all of the table."""
        found = [encode_schema(schema) for schema in self.schemas.values()]
        step = 512
        found += [encode_names(at, self.names[at : at + step]) for at in range(0, len(self.names), step)]
        return found


def encode_schema(schema: RowSchema) -> bytes:
    """Return the entry that declares a row schema."""
    return encode_entry({"id": schema.id, "kinds": schema.kinds, "names": schema.names})


def encode_names(first: int, names: list[str]) -> bytes:
    """Return the entry that gives the ids `first`, `first` + 1, … to names of pairs."""
    return encode_entry({"first": first, "names": names})


def encode_entry(entry: dict[str, Any]) -> bytes:
    """Return an entry of the file with its length and checksum."""
    text = json.dumps(entry, separators=(",", ":")).encode()
    return FRAME.pack(len(text), zlib.crc32(text)) + text


def decode_entries(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the complete entries at the start of `data`, and their bytes; a torn entry at the end is not there yet."""
    entries = []
    position = 0
    while position + FRAME.size <= len(data):
        length, crc = FRAME.unpack_from(data, position)
        text = data[position + FRAME.size : position + FRAME.size + length]
        if len(text) < length or zlib.crc32(text) != crc:
            break
        entries.append(json.loads(text))
        position += FRAME.size + length
    return entries, position
