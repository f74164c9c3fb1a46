"""Rows of a run of another tool: its series merged into rows, and what of them the store has already."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.store.reader import Past

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from stepscope.core.arrays import Floats, Integers
    from stepscope.importers.imported import ImportedSeries
    from stepscope.store.layout import RunFolder

MOST_VALUES = 500
"""Maximum values of one row."""
EARLIEST, LATEST = 1e8, 1e11
"""Seconds since 1970 that are a date; a smaller time counts from the start of the run, a larger one is none."""
MICROSECOND = 1_000_000


class Row(NamedTuple):
    """Values of one moment."""

    time: int
    """Microseconds since 1970."""
    step: int
    names: tuple[str, ...]
    values: tuple[float, ...]


class SourceChangedError(Exception):
    """A source that was read again gives other points than before."""


def microseconds(seconds: Floats, start: float, unknown: float) -> Integers:
    """Return times in microseconds since 1970: small ones count from `start`, missing ones are `unknown` (seconds)."""
    with np.errstate(invalid="ignore"):
        relative, wrong = np.abs(seconds) < EARLIEST, ~(np.abs(seconds) < LATEST)
    moments = np.where(wrong, unknown, np.where(relative, start + seconds, seconds))
    found: Integers = np.rint(moments * MICROSECOND).astype(np.int64)
    return found


def rows_of(series: Mapping[str, ImportedSeries], start: float, unknown: float) -> Iterator[Row]:
    """Yield the points of one rank and attempt as rows, merged by time; each series keeps its order.

    Metrics with the same steps and times share their rows.
    """
    together: dict[tuple[bytes, bytes], list[str]] = {}
    for name, one in series.items():
        together.setdefault((one.step.tobytes(), one.time.tobytes()), []).append(name)
    parts = []
    for names in together.values():
        first = series[names[0]]
        moments = microseconds(first.time, start, unknown).tolist()
        for at in range(0, len(names), MOST_VALUES):
            some = tuple(names[at : at + MOST_VALUES])
            values = zip(*(series[name].value.tolist() for name in some), strict=True)
            parts.append(_rows(moments, first.step.tolist(), some, values))
    return heapq.merge(*parts, key=lambda row: row.time) if len(parts) > 1 else iter(parts[0] if parts else ())


def _rows(
    moments: list[int], steps: list[int], names: tuple[str, ...], values: Iterable[tuple[float, ...]]
) -> Iterator[Row]:
    for moment, step, row in zip(moments, steps, values, strict=True):
        yield Row(moment, step, names, row)


class KnownPoints:
    """The points of a run that the store has already, as a source that is read from its beginning gives them again."""

    def __init__(self, folder: RunFolder | None, first_attempt: int = 0) -> None:
        """Compare with the run in `folder`, from an attempt on; None: nothing is known."""
        self._past = None if folder is None else Past(folder)
        self._names = set() if self._past is None else set(self._past.names())
        self._first = first_attempt
        self._left: dict[tuple[str, int], tuple[Integers, Floats]] = {}
        """Steps and values that are still to come again, by name and rank."""

    def fresh(self, series: ImportedSeries) -> ImportedSeries | None:
        """Return the points of a series that are new; None if there is none.

        Raises:
            SourceChangedError: the series was different before.
        """
        if series.name not in self._names:
            return series
        is_known = np.zeros(len(series), bool)
        for rank in np.unique(series.rank).tolist():
            mine = np.flatnonzero(series.rank == rank)
            steps, values = self._expected(series.name, rank)
            both = min(len(mine), len(steps))
            now, before = series.value[mine[:both]], values[:both]
            same = (now == before) | (np.isnan(now) & np.isnan(before))
            if not (same & (series.step[mine[:both]] == steps[:both])).all():
                raise SourceChangedError
            is_known[mine[:both]] = True
            self._left[series.name, rank] = steps[both:], values[both:]
        return None if is_known.all() else select(series, ~is_known)

    def _expected(self, name: str, rank: int) -> tuple[Integers, Floats]:
        found = self._left.get((name, rank))
        if found is None:
            assert self._past is not None  # noqa: S101 - else it would know no names
            stored = self._past.series(name, rank=rank)
            mine = stored.attempt >= self._first
            found = self._left[name, rank] = stored.step[mine], stored.value[mine]
        return found


def select(series: ImportedSeries, chosen: np.ndarray) -> ImportedSeries:
    """Return some points of a series; `chosen` is a mask or indices."""
    columns = {name: getattr(series, name)[chosen] for name in ("step", "time", "value", "rank", "attempt")}
    return replace(series, **columns, seq=None)
