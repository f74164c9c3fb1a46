"""Recorded values as columns: what the store writes, reads and passes to analyses."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

NO_NS = -(2**63)
"""In `Points.ns`: the value is a float, not a duration."""


@dataclass(frozen=True, slots=True)
class SeriesColumns:
    """Columns of equal length, one entry per point or block; a series is one (name, rank, attempt)."""

    names: list[str]
    """Table of names."""
    name: NDArray[np.int32]
    """Index into `names`."""
    rank: NDArray[np.int32]
    """A rank, or a negative number for the watcher of a node."""
    attempt: NDArray[np.int32]
    """Attempt number, from 0."""

    def __len__(self) -> int:
        return len(self.name)

    def select(self, index: NDArray[Any] | slice) -> Self:
        """Return the entries of a boolean mask, an array of positions or a slice; the table of names is unchanged."""
        return type(self)(self.names, **{column: getattr(self, column)[index] for column in columns_of(type(self))})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join parts in the given order, with one table of names."""
        if not parts:
            return cls.empty()
        table: dict[str, int] = {}
        codes = []
        for part in parts:
            new = np.array([table.setdefault(name, len(table)) for name in part.names], dtype=np.int32)
            codes.append(new[part.name] if len(part) else part.name)
        columns = {column: np.concatenate([getattr(part, column) for part in parts]) for column in columns_of(cls)}
        return cls(list(table), **columns | {"name": np.concatenate(codes)})

    @classmethod
    def empty(cls) -> Self:
        """Return columns without entries."""
        raise NotImplementedError


def columns_of(kind: type[SeriesColumns]) -> tuple[str, ...]:
    """Return the names of the columns of points or blocks."""
    return tuple(field.name for field in fields(kind) if field.name != "names")


@dataclass(frozen=True, slots=True)
class Points(SeriesColumns):
    """Recorded values. The order of a series is (rank, attempt, seq); the columns may be in any order."""

    seq: NDArray[np.int64]
    """Sequence of the record in its ring, one counter per rank and attempt."""
    step: NDArray[np.int64]
    """Step, or NO_STEP."""
    time: NDArray[np.int64]
    """Microseconds since 1970 UTC."""
    value: NDArray[np.float64]
    """Any float, including NaN and infinities; durations are in seconds."""
    ns: NDArray[np.int64]
    """Exact duration in nanoseconds, or NO_NS."""

    def __post_init__(self) -> None:
        if len({len(getattr(self, column)) for column in columns_of(Points)}) != 1:
            raise ValueError("columns of points differ in length")

    @classmethod
    def empty(cls) -> Self:
        """Return no points."""
        codes, integers = np.empty(0, np.int32), np.empty(0, np.int64)
        return cls([], codes, codes, codes, integers, integers, integers, np.empty(0, np.float64), integers)


def series_starts(columns: SeriesColumns) -> NDArray[np.int64]:
    """Return where each contiguous (name, rank, attempt) starts."""
    if not len(columns):
        return np.empty(0, np.int64)
    new = columns.name[1:] != columns.name[:-1]
    new |= columns.rank[1:] != columns.rank[:-1]
    new |= columns.attempt[1:] != columns.attempt[:-1]
    return np.concatenate(([0], np.flatnonzero(new) + 1)).astype(np.int64)


def series_bounds(columns: SeriesColumns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return start and length of each contiguous (name, rank, attempt)."""
    starts = series_starts(columns)
    return starts, np.diff(starts, append=len(columns))


def row_starts(points: Points) -> NDArray[np.int64]:
    """Return where each row starts in points that are ordered by rank, attempt and sequence."""
    if not len(points):
        return np.empty(0, np.int64)
    new = points.seq[1:] != points.seq[:-1]
    for column in (points.rank, points.attempt):
        new |= column[1:] != column[:-1]
    return np.concatenate(([0], np.flatnonzero(new) + 1)).astype(np.int64)


def in_order(points: Points) -> Points:
    """Sort by index of name, rank, attempt and seq; equal keys keep their order."""
    if len(points) < 2:
        return points
    key = _series_key(points)
    if key is None:
        return points.select(np.lexsort((points.seq, points.attempt, points.rank, points.name)))
    if np.any(key[1:] < key[:-1]):
        # A stable sort of 16-bit keys is a radix sort: 20 times cheaper than lexsort of four columns.
        points = points.select(np.argsort(key, kind="stable"))
        key = _series_key(points)
    if key is not None and np.any((points.seq[1:] < points.seq[:-1]) & (key[1:] == key[:-1])):
        points = points.select(np.lexsort((points.seq, key)))
    return points


def distinct(points: Points) -> Points:
    """Sort, and keep the first of each (name, rank, attempt, seq)."""
    points = in_order(points)
    again = points.seq[1:] == points.seq[:-1]
    for column in (points.name, points.rank, points.attempt):
        again &= column[1:] == column[:-1]
    return points.select(np.concatenate(([True], ~again))) if again.any() else points


def with_sorted_names(points: Points) -> Points:
    """Return the points with a sorted table that holds each used name once.

    Lone surrogates, which UTF-8 cannot encode, are replaced: no file format of ours can carry them.
    """
    used = np.unique(points.name)
    clean = {int(code): points.names[code].encode("utf-8", "replace").decode("utf-8") for code in used}
    names = sorted(set(clean.values()))
    place = {name: index for index, name in enumerate(names)}
    new = np.zeros(len(points.names), dtype=np.int32)
    for code, name in clean.items():
        new[code] = place[name]
    return replace(points, names=names, name=new[points.name] if len(points) else points.name)


def _series_key(points: Points) -> NDArray[Any] | None:
    """Return one integer per point that sorts as (name, rank, attempt), or None if none is small enough."""
    key = np.zeros(len(points), dtype=np.int64)
    room = 1
    for column in (points.name, points.rank, points.attempt):
        low, high = int(column.min()), int(column.max())
        room *= high - low + 1
        if room >= 2**62:
            return None
        if high > low:
            key *= high - low + 1
            key += column
            key -= low
    return key.astype(np.uint16) if room <= 2**16 else key
