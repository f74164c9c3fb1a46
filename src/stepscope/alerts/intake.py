"""From drained records to points by metric: whole batches of rows at once, only the columns that somebody wants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.core import ring

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.alerts.piece import Piece
    from stepscope.core.columns import Schema

    Numbers = NDArray[np.float64]

HEAD_WORDS = ring.RECORD.size // 8
"""Words of 8 bytes before a record's values: length and schema, sequence, time, step."""
Wanted = Callable[[int, str], bool]
"""Say whether a metric of a rank is wanted."""


Sampled = tuple[int, Mapping[str, float], float]
"""Rank, values and time of a row of the watcher's own."""


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
        self._columns: dict[tuple[int, Schema], list[tuple[str, int, bool]]] = {}
        self._axes = 0

    def read(self, pieces: Iterable[Piece], samples: Iterable[Sampled] = ()) -> Parts:
        """Return the new points by rank and name, in the order in which they came."""
        found: Parts = {}
        rows: dict[tuple[int, Schema], list[tuple[NDArray[np.int64], NDArray[np.intp]]]] = {}
        for piece in pieces:
            size = len(piece.data) // 8 * 8
            words = np.frombuffer(piece.data, dtype="<i8", count=size // 8)
            by_schema: dict[int, list[int]] = {}
            for offset, number, _ in ring.records(piece.data):
                if number == ring.SCHEMA_PAIRS:
                    self._pairs(piece, words, offset // 8, found)
                elif number != ring.SCHEMA_EVENT:
                    by_schema.setdefault(number, []).append(offset // 8)
            for number, places in by_schema.items():
                schema = piece.table.schemas.get(number)
                if schema is not None and len(schema.kinds) == len(schema.names):
                    rows.setdefault((piece.rank, schema), []).append((words, np.array(places, dtype=np.intp)))
        for (rank, schema), batches in rows.items():
            self._rows(rank, schema, batches, found)
        for rank, values, moment in samples:
            self._sampled(rank, values, moment, found)
        return found

    def _sampled(self, rank: int, values: Mapping[str, float], moment: float, found: Parts) -> None:
        """Take a row that the watcher made itself."""
        self._axes += 1
        step, time = np.array([np.nan]), np.array([moment])
        for name, value in values.items():
            if self._wanted(rank, name):
                found.setdefault((rank, name), []).append(Part(step, time, np.array([value]), self._axes))

    def _rows(
        self, rank: int, schema: Schema, batches: list[tuple[NDArray[np.int64], NDArray[np.intp]]], found: Parts
    ) -> None:
        columns = self._columns_of(rank, schema)
        if not columns:
            return
        last = HEAD_WORDS + len(schema.names)
        batches = [(words, at[at + last <= len(words)]) for words, at in batches]
        time = np.concatenate([words[at + 2] for words, at in batches]) / 1e9 + self._offset
        step = steps_of(np.concatenate([words[at + 3] for words, at in batches]))
        self._axes += 1
        places = np.array([column for _, column, _ in columns]) + HEAD_WORDS
        whole = [words[at[:, None] + places] for words, at in batches]
        table = np.concatenate(whole) if len(whole) > 1 else whole[0]
        floats = table.view("<f8")
        for index, (name, _, is_duration) in enumerate(columns):
            value = table[:, index] / 1e9 if is_duration else floats[:, index]
            found.setdefault((rank, name), []).append(Part(step, time, value, self._axes))

    def _columns_of(self, rank: int, schema: Schema) -> list[tuple[str, int, bool]]:
        """Return name, column and kind of what is wanted of a kind of row."""
        known = self._columns.get((rank, schema))
        if known is None:
            known = [
                (name, column, schema.kinds[column] == "q")
                for column, name in enumerate(schema.names)
                if self._wanted(rank, name)
            ]
            self._columns[rank, schema] = known
        return known

    def _pairs(self, piece: Piece, words: NDArray[np.int64], at: int, found: Parts) -> None:
        """Read a row of (name id, value) pairs, as runs with very many names have them."""
        length = int(words[at] & 0xFFFFFFFF) // 8 - (1 if piece.checked else 0)
        body = words[at + HEAD_WORDS : at + length]
        time, step = np.array([words[at + 2] / 1e9 + self._offset]), steps_of(words[at + 3 : at + 4])
        values = body.view("<f8")
        names = piece.table.names
        self._axes += 1
        for place in range(0, len(body) - 1, 2):
            number = int(body[place])
            if 0 <= number < len(names) and self._wanted(piece.rank, names[number]):
                part = Part(step, time, values[place + 1 : place + 2], self._axes)
                found.setdefault((piece.rank, names[number]), []).append(part)


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
