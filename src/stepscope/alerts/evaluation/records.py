"""From drained records to points by metric: whole batches of rows at once, only the columns that somebody wants."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.core import ring
from stepscope.core.grouping import groups

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.alerts.evaluation.piece import Piece
    from stepscope.core.columns import Schema

    Numbers = NDArray[np.float64]

HEAD_WORDS = ring.RECORD.size // 8
"""Words of 8 bytes before a record's values: length and schema, sequence, time, step."""
FEW = 12
"""Rows up to which numbers are read one by one."""
FLOAT, DURATION = struct.Struct("<d"), struct.Struct("<q")
Column = tuple[str, int, bool]
"""Name of a metric, its place in the row, and whether it is a duration in ns."""
Places = tuple[bytes, list[int]]
"""Records, and where those of one kind begin."""
Wanted = Callable[[int, str], bool]
"""Say whether a metric of a rank is wanted."""


class Part(NamedTuple):
    """New points of one metric."""

    step: Numbers
    """NaN where a point belongs to no step."""
    time: Numbers
    """Seconds since 1970."""
    value: Numbers
    axis: int
    """Names the rows that they came in."""


Parts = dict[tuple[int, str], list[Part]]


class Intake:
    """Decodes records; keeps which columns of which rows are wanted."""

    def __init__(self, offset: float, wanted: Wanted) -> None:
        """Take the seconds to add to monotonic time, and who says what is wanted."""
        self._offset, self._wanted = offset, wanted
        self._columns: dict[tuple[int, int], tuple[Schema, list[Column]]] = {}
        self._axes = 0

    def read(self, pieces: Iterable[Piece], found: Parts) -> Parts:
        """Add the new points to those that were found elsewhere, by rank and name, in the order in which they came."""
        rows: dict[tuple[int, int], tuple[Schema, list[Places]]] = {}
        for piece in pieces:
            by_schema: dict[int, list[int]] = {}
            for group in groups(piece.data):
                by_schema.setdefault(group.schema, []).extend(group.offsets())
            by_schema.pop(ring.SCHEMA_EVENT, None)
            for offset in sorted(by_schema.pop(ring.SCHEMA_PAIRS, ())):
                self._pairs(piece, offset, found)
            for number, places in by_schema.items():
                schema = piece.table.schemas.get(number)
                if schema is not None and len(schema.kinds) == len(schema.names):
                    rows.setdefault((piece.rank, id(schema)), (schema, []))[1].append((piece.data, sorted(places)))
        for (rank, _), (schema, batches) in rows.items():
            columns = self._columns_of(rank, schema)
            if columns:
                size = ring.RECORD.size + 8 * len(schema.names)
                whole = [(data, [at for at in places if at + size <= len(data)]) for data, places in batches]
                few = sum(len(places) for _, places in whole) <= FEW
                (self._few if few else self._many)(rank, columns, whole, found)
        return found

    def _few(self, rank: int, columns: list[Column], batches: list[Places], found: Parts) -> None:
        """Read a few rows one by one: below a dozen, arrays cost more than they save."""
        heads = [ring.RECORD.unpack_from(data, at)[3:] for data, places in batches for at in places]
        if not heads:
            return
        self._axes -= 1
        time = np.array([moment / 1e9 + self._offset for moment, _ in heads])
        step = np.array([np.nan if step == ring.NO_STEP else step for _, step in heads], dtype=np.float64)
        for name, column, is_duration in columns:
            unpack, offset = (DURATION if is_duration else FLOAT).unpack_from, ring.RECORD.size + 8 * column
            values = [unpack(data, at + offset)[0] for data, places in batches for at in places]
            value = np.array(values, dtype=np.float64)
            found.setdefault((rank, name), []).append(
                Part(step, time, value / 1e9 if is_duration else value, self._axes)
            )

    def _many(self, rank: int, columns: list[Column], batches: list[Places], found: Parts) -> None:
        """Read many rows at once."""
        taken = [(_words(data), np.array(places, dtype=np.intp) // 8) for data, places in batches]
        time = np.concatenate([words[at + 2] for words, at in taken]) / 1e9 + self._offset
        step = steps_of(np.concatenate([words[at + 3] for words, at in taken]))
        self._axes -= 1
        wanted = np.array([column for _, column, _ in columns]) + HEAD_WORDS
        whole = [words[at[:, None] + wanted] for words, at in taken]
        table = np.concatenate(whole) if len(whole) > 1 else whole[0]
        floats = table.view("<f8")
        for index, (name, _, is_duration) in enumerate(columns):
            value = table[:, index] / 1e9 if is_duration else floats[:, index]
            found.setdefault((rank, name), []).append(Part(step, time, value, self._axes))

    def _columns_of(self, rank: int, schema: Schema) -> list[Column]:
        """Return name, column and kind of what is wanted of a kind of row."""
        known = self._columns.get((rank, id(schema)))
        if known is None:
            columns = [
                (name, column, schema.kinds[column] == "q")
                for column, name in enumerate(schema.names)
                if self._wanted(rank, name)
            ]
            known = self._columns[rank, id(schema)] = (schema, columns)  # held, so that no other has its id
        return known[1]

    def _pairs(self, piece: Piece, offset: int, found: Parts) -> None:
        """Read a row of (name id, value) pairs, as runs with very many names have them."""
        words, at = _words(piece.data), offset // 8
        length = int(words[at] & 0xFFFFFFFF) // 8 - (1 if piece.checked else 0)
        body = words[at + HEAD_WORDS : at + length]
        time, step = np.array([words[at + 2] / 1e9 + self._offset]), steps_of(words[at + 3 : at + 4])
        values = body.view("<f8")
        names = piece.table.names
        self._axes -= 1
        for place in range(0, len(body) - 1, 2):
            number = int(body[place])
            if 0 <= number < len(names) and self._wanted(piece.rank, names[number]):
                part = Part(step, time, values[place + 1 : place + 2], self._axes)
                found.setdefault((piece.rank, names[number]), []).append(part)


def _words(data: bytes) -> NDArray[np.int64]:
    """Return records as words of 8 bytes."""
    return np.frombuffer(data, dtype="<i8", count=len(data) // 8)


def steps_of(step: NDArray[np.int64]) -> Numbers:
    """Return steps as numbers, NaN for none."""
    found = step.astype(np.float64)
    found[step == ring.NO_STEP] = np.nan
    return found


def merged(parts: list[Part]) -> Part:
    """Return the points of one metric that came in several kinds of rows, in order of time."""
    if len(parts) == 1:
        return parts[0]
    time = np.concatenate([part.time for part in parts])
    order = np.argsort(time, kind="stable")
    step, value = (np.concatenate(each)[order] for each in ([p.step for p in parts], [p.value for p in parts]))
    return Part(step, time[order], value, hash(tuple(part.axis for part in parts)))
