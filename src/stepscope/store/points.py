"""Recorded values as columns: what the store writes, reads and passes to analyses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

NO_NS = -(2**63)
"""In `Points.ns`: the value is a float, not a duration."""

_DTYPES: dict[str, type[np.generic]] = {
    "name": np.int32,
    "rank": np.int32,
    "attempt": np.int32,
    "seq": np.int64,
    "step": np.int64,
    "time": np.int64,
    "value": np.float64,
    "ns": np.int64,
}


@dataclass(frozen=True, slots=True)
class Points:
    """Columns of equal length, one entry per recorded value.

    The order of a series is (rank, attempt, seq); the columns themselves may be in any order.
    """

    names: list[str]
    """Table of names."""
    name: NDArray[np.int32]
    """Index into `names`."""
    rank: NDArray[np.int32]
    """A rank, or a negative number for the watcher of a node."""
    attempt: NDArray[np.int32]
    """Attempt number, from 0."""
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
        if len({len(getattr(self, field)) for field in _DTYPES}) != 1:
            raise ValueError("columns of points differ in length")

    def __len__(self) -> int:
        return len(self.name)

    def select(self, index: NDArray[Any] | slice) -> Points:
        """Return the points of a boolean mask, an array of positions or a slice; the table of names is unchanged."""
        return Points(self.names, **{field: getattr(self, field)[index] for field in _DTYPES})

    @staticmethod
    def concat(parts: Sequence[Points]) -> Points:
        """Join parts in the given order, with one table of names."""
        if not parts:
            return Points.empty()
        table: dict[str, int] = {}
        codes = []
        for part in parts:
            new = np.array([table.setdefault(name, len(table)) for name in part.names], dtype=np.int32)
            codes.append(new[part.name] if len(part) else part.name)
        columns = {field: np.concatenate([getattr(part, field) for part in parts]) for field in _DTYPES}
        columns["name"] = np.concatenate(codes)
        return Points(list(table), **columns)

    @staticmethod
    def empty() -> Points:
        """Return no points."""
        return Points([], **{field: np.empty(0, dtype) for field, dtype in _DTYPES.items()})


def series_starts(points: Points) -> NDArray[np.int64]:
    """Return where each contiguous (name, rank, attempt) starts."""
    if not len(points):
        return np.empty(0, np.int64)
    new = points.name[1:] != points.name[:-1]
    new |= points.rank[1:] != points.rank[:-1]
    new |= points.attempt[1:] != points.attempt[:-1]
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
    clean = {int(code): _encodable(points.names[code]) for code in used}
    names = sorted(set(clean.values()))
    place = {name: index for index, name in enumerate(names)}
    new = np.zeros(len(points.names), dtype=np.int32)
    for code, name in clean.items():
        new[code] = place[name]
    columns = {field.name: getattr(points, field.name) for field in fields(points)}
    return Points(**{**columns, "names": names, "name": new[points.name] if len(points) else points.name})


def _encodable(name: str) -> str:
    return name.encode("utf-8", "replace").decode("utf-8")


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
