"""Parse the footer of a Parquet file: where its row groups are, and the same footer without some of them.

A footer is Thrift (compact protocol). Only the needed fields are parsed, the rest is skipped, so a rebuilt footer keeps
every other byte unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""Length of the file's end after the footer: the footer's length (4 bytes, little-endian) and the magic."""

_MAX_DEPTH = 24
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = 1, 2, 3, 7, 8, 9, 10, 11, 12, 13
_INT64 = 6
_INTEGERS = (4, 5, _INT64)
_FIXED = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8, _UUID: 16}

_Tree = dict[int, "_Tree"]
_POSITIONS: _Tree = {1: {2: {}, 3: {9: {}, 10: {}, 11: {}, 14: {}}, 4: {}, 6: {}}, 5: {}}
"""The fields of a row group, its column chunks and their metadata that are positions in the file."""


_CHUNK_INTEGERS = {7: "length", 9: "offset", 11: "dictionary"}
"""The fields of a column chunk's metadata that are kept as attributes of `_Chunk`."""


class FooterError(ValueError):
    """The bytes are not the footer of a Parquet file."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group: its position in the footer, and that of its data in the file, in bytes; `end` is exclusive."""

    span: tuple[int, int]
    """Start and end of its entry in the footer."""
    rows: int
    columns: tuple[tuple[int, int], ...]
    """Offset and length of each column chunk."""
    bounds: dict[str, tuple[bytes, bytes]]
    """Lowest and highest value of each column that has them, as stored."""

    @property
    def offset(self) -> int:
        """The position of its first byte in the file."""
        return min(start for start, _ in self.columns)

    @property
    def end(self) -> int:
        """The position after its last byte in the file."""
        return max(start + length for start, length in self.columns)


@dataclass(frozen=True, slots=True)
class Footer:
    """A footer and its parsed positions."""

    data: bytes
    rows: int
    rows_span: tuple[int, int]
    """Position of the number of rows."""
    list_span: tuple[int, int]
    """Position of the head of the list of row groups."""
    groups: tuple[RowGroup, ...]


def parse(data: bytes) -> Footer:
    """Parse a footer; raise FooterError, and never anything else, if the bytes are not one."""
    cursor = _Cursor(data)
    found: dict[int, tuple[int, int]] = {}
    rows = -1
    groups: tuple[RowGroup, ...] = ()
    for field, kind in cursor.fields():
        start = cursor.at
        if field == 3 and kind in _INTEGERS:
            rows = cursor.integer()
            found[3] = (start, cursor.at)
        elif field == 4 and kind == _LIST:
            size = cursor.list_size(_STRUCT)
            found[4] = (start, cursor.at)
            groups = tuple(_row_group(cursor) for _ in range(size))
        else:
            cursor.skip(kind, 0)
    if len(found) != 2 or rows != sum(group.rows for group in groups):
        raise FooterError("cannot read a Parquet footer: rows and row groups do not agree")
    if cursor.at != len(data):
        raise FooterError("cannot read a Parquet footer: bytes follow its end")
    return Footer(data, rows, found[3], found[4], groups)


def without_row_groups(footer: bytes, drop: Collection[int]) -> bytes:
    """Return the footer without the row groups of these indexes and with the number of rows corrected."""
    parsed = parse(footer)
    kept = [group for index, group in enumerate(parsed.groups) if index not in drop]
    pieces = {
        parsed.rows_span: _varint(_zigzag(sum(group.rows for group in kept))),
        parsed.list_span: _list_head(len(kept)),
        **{group.span: b"" for index, group in enumerate(parsed.groups) if index in drop},
    }
    out, at = bytearray(), 0
    for (start, end), new in sorted(pieces.items()):
        out += footer[at:start] + new
        at = end
    return bytes(out + footer[at:])


def moved(footer: Footer, group: RowGroup, by: int) -> bytes:
    """Return the entry of a row group after its data moved by `by` bytes."""
    cursor = _Cursor(footer.data)
    cursor.at = group.span[0]
    out, at = bytearray(), group.span[0]
    for start, end, position in _positions(cursor, _POSITIONS):
        if position:  # writers put 0 where there is no position
            out += footer.data[at:start] + _varint(_zigzag(position + by))
            at = end
    return bytes(out + footer.data[at : group.span[1]])


def with_row_groups(template: Footer, entries: Sequence[bytes], rows: int) -> bytes:
    """Return a copy of the template with other row groups."""
    data, (rows_start, rows_end), (list_start, list_end) = template.data, template.rows_span, template.list_span
    end = template.groups[-1].span[1] if template.groups else list_end
    head = data[:rows_start] + _varint(_zigzag(rows)) + data[rows_end:list_start] + _list_head(len(entries))
    return b"".join((head, *entries, data[end:]))


def same_columns(left: Footer, right: Footer) -> bool:
    """Return whether two footers differ only in their row groups: same columns, types and writer."""
    return with_row_groups(left, (), 0) == with_row_groups(right, (), 0)


def tail(footer: bytes) -> bytes:
    """Return the bytes that follow a footer in its file."""
    return len(footer).to_bytes(4, "little") + MAGIC


def locate(size: int, last: bytes) -> tuple[int, int]:
    """Return start and length of the footer, in bytes, from the file's size and its last 8 bytes."""
    length = int.from_bytes(last[:4], "little")
    if len(last) != TAIL_BYTES or last[4:] != MAGIC or length > size - TAIL_BYTES - len(MAGIC):
        raise FooterError("cannot find a Parquet footer: the file does not end with one")
    return size - TAIL_BYTES - length, length


class _Cursor:
    """A position in Thrift bytes that cannot leave them. Every step consumes a byte, so every walk ends."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        if self.at > len(self.data):
            raise FooterError("cannot read a Parquet footer: it ends too early")
        return self.data[start : self.at]

    def varint(self) -> int:
        value = shift = 0
        while shift < 70:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise FooterError("cannot read a Parquet footer: an integer has no end")

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        return self.take(self.varint())

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of each field of a struct; the caller must consume each value."""
        number = 0
        while head := self.take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 15

    def list_head(self) -> tuple[int, int]:
        head = self.take(1)[0]
        size = head >> 4
        size = self.varint() if size == 15 else size
        if size > len(self.data) - self.at:
            raise FooterError("cannot read a Parquet footer: a list is longer than its bytes")
        return size, head & 15

    def list_size(self, kind: int) -> int:
        size, found = self.list_head()
        if size and found != kind:
            raise FooterError("cannot read a Parquet footer: a list holds another type")
        return size

    def skip(self, kind: int, depth: int) -> None:
        """Skip one value of a field."""
        if kind not in (_TRUE, _FALSE):  # as a field, a boolean is its own type and has no bytes
            self.skip_element(kind, depth)

    def skip_element(self, kind: int, depth: int) -> None:
        """Skip one value of a list."""
        if depth > _MAX_DEPTH:
            raise FooterError("cannot read a Parquet footer: it is nested too deeply")
        if kind in _FIXED:
            self.take(_FIXED[kind])
        elif kind in _INTEGERS:
            self.varint()
        elif kind == _BINARY:
            self.binary()
        elif kind in (_LIST, _SET):
            size, inner = self.list_head()
            for _ in range(size):
                self.skip_element(inner, depth + 1)
        elif kind == _MAP:
            self.skip_map(depth)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        else:
            raise FooterError("cannot read a Parquet footer: unknown type of field")

    def skip_map(self, depth: int) -> None:
        size = self.varint()
        if size > len(self.data) - self.at:
            raise FooterError("cannot read a Parquet footer: a map is longer than its bytes")
        kinds = self.take(1)[0] if size else 0
        for _ in range(size):
            self.skip_element(kinds >> 4, depth + 1)
            self.skip_element(kinds & 15, depth + 1)


def _row_group(cursor: _Cursor) -> RowGroup:
    start = cursor.at
    rows = -1
    columns: list[tuple[int, int]] = []
    bounds: dict[str, tuple[bytes, bytes]] = {}
    for field, kind in cursor.fields():
        if field == 1 and kind == _LIST:
            for _ in range(cursor.list_size(_STRUCT)):
                chunk = _column_chunk(cursor)
                columns.append((chunk.offset, chunk.length))
                if chunk.low is not None and chunk.high is not None:
                    bounds[chunk.path] = (chunk.low, chunk.high)
        elif field == 3 and kind in _INTEGERS:
            rows = cursor.integer()
        else:
            cursor.skip(kind, 1)
    if rows < 0 or not columns:
        raise FooterError("cannot read a Parquet footer: a row group is incomplete")
    return RowGroup((start, cursor.at), rows, tuple(columns), bounds)


@dataclass(slots=True)
class _Chunk:
    offset: int = -1
    length: int = -1
    dictionary: int | None = None
    path: str = ""
    low: bytes | None = None
    high: bytes | None = None


def _column_chunk(cursor: _Cursor) -> _Chunk:
    chunk = _Chunk()
    for field, kind in cursor.fields():
        if field == 3 and kind == _STRUCT:
            _column_metadata(cursor, chunk)
        else:
            cursor.skip(kind, 2)
    if chunk.dictionary is not None:
        chunk.offset = min(chunk.offset, chunk.dictionary)
    if chunk.offset < len(MAGIC) or chunk.length < 0:
        raise FooterError("cannot read a Parquet footer: a column has no place")
    return chunk


def _column_metadata(cursor: _Cursor, chunk: _Chunk) -> None:
    for field, kind in cursor.fields():
        if field == 3 and kind == _LIST:
            parts = [cursor.binary() for _ in range(cursor.list_size(_BINARY))]
            chunk.path = b".".join(parts).decode("utf-8", "replace")
        elif field in _CHUNK_INTEGERS and kind == _INT64:
            setattr(chunk, _CHUNK_INTEGERS[field], cursor.integer())
        elif field == 12 and kind == _STRUCT:
            _statistics(cursor, chunk)
        else:
            cursor.skip(kind, 3)


def _statistics(cursor: _Cursor, chunk: _Chunk) -> None:
    for field, kind in cursor.fields():
        if field == 5 and kind == _BINARY:
            chunk.high = cursor.binary()
        elif field == 6 and kind == _BINARY:
            chunk.low = cursor.binary()
        else:
            cursor.skip(kind, 4)


def _positions(cursor: _Cursor, tree: _Tree) -> Iterator[tuple[int, int, int]]:
    """Return start, end and value of every integer of a struct that is a position in the file."""
    for field, kind in cursor.fields():
        inner = tree.get(field)
        start = cursor.at
        if inner is None:
            cursor.skip(kind, 1)
        elif kind in _INTEGERS:
            position = cursor.integer()
            yield start, cursor.at, position
        else:
            for _ in range(cursor.list_size(_STRUCT) if kind == _LIST else 1):
                yield from _positions(cursor, inner)


def _zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _list_head(size: int) -> bytes:
    return bytes([size << 4 | _STRUCT]) if size < 15 else bytes([0xF0 | _STRUCT]) + _varint(size)
