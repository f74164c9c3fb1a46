"""Read the points of metrics in portions that fit into memory, however long a metric is.

A metric that is too long to be read at once is read one span of sequences or of steps at a time. The coarse blocks of
the pyramid show where a span is full, and which units hold its points. This also works while the run is being written:
each span is read from the files that exist at that time, and holds each point once.
"""

from __future__ import annotations

import contextlib
import itertools
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.store.layout import RunFolder
from stepscope.store.parquet import Selection
from stepscope.store.points import Points, distinct, in_order, series_starts, with_sorted_names
from stepscope.store.pyramid import LEVELS, Blocks, build
from stepscope.store.reader import RELISTS, Past
from stepscope.store.sealed import read_blocks
from stepscope.store.snapshot import Snapshot, take_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    import duckdb
    from numpy.typing import NDArray

    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.checksum import SealedUnit

PORTION = 200_000
"""Points read at once, approximately."""

FIRST, LAST = NO_STEP + 1, 2**63 - 1


class Axis(NamedTuple):
    """The axis that a series is divided by: the two columns of a block's ends."""

    low: str
    high: str


BY_SEQUENCE = Axis("first_seq", "last_seq")
BY_STEP = Axis("low_step", "high_step")
"""Leaves out points without a step."""


class SeriesSpan(NamedTuple):
    """A part of the series of one rank and attempt; first and last are included."""

    rank: int
    attempt: int
    first: int
    last: int


_COUNTED: ContextVar[Callable[[int], object] | None] = ContextVar("counted", default=None)


@contextlib.contextmanager
def counting(report: Callable[[int], object]) -> Iterator[None]:
    """Call `report` with the number of points whenever some were written, until the end of the block."""
    token = _COUNTED.set(report)
    try:
        yield
    finally:
        _COUNTED.reset(token)


def count(points: int) -> None:
    """Report that so many points were written."""
    report = _COUNTED.get()
    if report is not None:
        report(points)


def by_span(past: Past, names: AbstractSet[str], axis: Axis) -> Iterator[Points]:
    """Yield the points of metrics, ordered by rank, attempt and span; within a span by name and seq."""
    places = _Places(names, axis)
    for span in past.read(places.survey):
        yield past.read(partial(places.read, span))


def of_unit(unit: SealedUnit, connection: duckdb.DuckDBPyConnection) -> Iterator[Points]:
    """Yield all points of one unit, ordered by rank, attempt and span of sequences; FileNotFoundError if it is gone."""
    places, snapshot = _Places(unit.names.keys(), BY_SEQUENCE), Snapshot([unit], Points.empty())
    for span in places.survey(snapshot, connection)[0]:
        yield places.read(span, snapshot, connection)[0]


@dataclass
class _Places:
    """Which units hold which part of each series."""

    names: AbstractSet[str]
    axis: Axis
    _extents: dict[tuple[str, int, int], tuple[int, int]] = field(default_factory=dict)
    """First and last in a unit, by its file, rank and attempt."""
    _known: set[str] = field(default_factory=set)

    def survey(self, snapshot: Snapshot, connection: duckdb.DuckDBPyConnection) -> tuple[list[SeriesSpan], list[str]]:
        """Return the spans to read one after another."""
        problems: list[str] = []
        parts = []
        for unit in snapshot.holding(self.names):
            blocks, wrong = read_blocks([unit], Selection(self.names, level=LEVELS[-1]), connection=connection)
            problems += map(str, wrong)
            parts.append(self._table(blocks))
            self._note(unit, parts[-1])
        parts.append(self._table(build(distinct(snapshot.tail_points(Selection(self.names))), LEVELS[-1])))
        table = np.concatenate(parts)
        ordered = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
        return _cuts(ordered), problems

    def read(
        self, span: SeriesSpan, snapshot: Snapshot, connection: duckdb.DuckDBPyConnection
    ) -> tuple[Points, list[str]]:
        """Return the points of a span, each once and in order, and what could not be read."""
        ends = (span.first, span.last)
        steps, sequences = (ends, None) if self.axis is BY_STEP else (None, ends)
        selection = Selection(self.names, {span.rank}, {span.attempt}, steps, seq_range=sequences)
        units = [unit for unit in snapshot.units if self._may_hold(unit, span)]
        return replace(snapshot, units=units).points(selection, connection)

    def _may_hold(self, unit: SealedUnit, span: SeriesSpan) -> bool:
        """Return whether a unit may hold points of a span; a new unit may."""
        if str(unit.path) not in self._known:
            return True
        first, last = self._extents.get((str(unit.path), span.rank, span.attempt), (LAST, FIRST))
        return first <= span.last and span.first <= last

    def _table(self, blocks: Blocks) -> NDArray[np.int64]:
        """Return one row per block: rank, attempt, low, high, points."""
        low, high = getattr(blocks, self.axis.low), getattr(blocks, self.axis.high)
        rows = np.stack([blocks.rank, blocks.attempt, low, high, blocks.count], axis=1).astype(np.int64)
        found: NDArray[np.int64] = rows[rows[:, 3] != NO_STEP]
        return found

    def _note(self, unit: SealedUnit, table: NDArray[np.int64]) -> None:
        self._known.add(str(unit.path))
        for rank, attempt, first, last, _ in table.tolist():
            key = (str(unit.path), rank, attempt)
            low, high = self._extents.get(key, (first, last))
            self._extents[key] = (min(low, first), max(high, last))


def _cuts(table: NDArray[np.int64]) -> list[SeriesSpan]:
    """Divide each series where a portion is full; its last span is open, for the points that a live run adds."""
    found: list[SeriesSpan] = []
    span, held, low, high = SeriesSpan(0, 0, FIRST, LAST), 0, 0, 0
    for rank, attempt, first, last, count in table.tolist():
        if not held or span[:2] != (rank, attempt):
            found += _finer(span, held, low, high)
            span, held, low, high = SeriesSpan(rank, attempt, FIRST, LAST), 0, first, last
        elif held + count > PORTION and first > low:
            found += _finer(span._replace(last=first - 1), held, low, min(high, first - 1))
            span, held, low, high = SeriesSpan(rank, attempt, first, LAST), 0, first, last
        held, high = held + count, max(high, last)
    return [*found, *_finer(span, held, low, high)]


def _finer(span: SeriesSpan, held: int, low: int, high: int) -> Iterator[SeriesSpan]:
    """Divide a span evenly if all its blocks begin at one place, as with many metrics."""
    parts = max(1, min(round(held / PORTION), high - low + 1)) if held else 0
    edges = [low + (high - low + 1) * part // parts for part in range(1, parts)]
    for first, after in itertools.pairwise([span.first, *edges, span.last] if parts else []):
        yield span._replace(first=first, last=after if after == span.last else after - 1)


def portions(past: Past, metrics: Sequence[ExportedMetric]) -> Iterator[tuple[ExportedMetric, Points]]:
    """Yield metrics with their points, ordered by rank, attempt and seq, in the unit of the written name.

    A metric comes at least once, and several times in a row if it is longer than a portion.
    """
    for metric, points in _portions(past, metrics):
        yield metric, points
        count(len(points))


def _portions(past: Past, metrics: Sequence[ExportedMetric]) -> Iterator[tuple[ExportedMetric, Points]]:
    sizes = sizes_of(past)
    waiting: list[ExportedMetric] = []
    held = 0
    for metric in metrics:
        size = sizes.get(metric.recorded, 0)
        if waiting and held + size > PORTION:
            yield from _together(past, waiting)
            waiting, held = [], 0
        if size > PORTION:
            for points in by_span(past, {metric.recorded}, BY_SEQUENCE):
                yield metric, _scaled(points, metric)
        else:
            waiting.append(metric)
            held += size
    yield from _together(past, waiting)


def chunks(
    found: Iterable[tuple[ExportedMetric, Points]], size: int, *, by_series: bool = False
) -> Iterator[tuple[ExportedMetric, Points]]:
    """Yield portions as chunks of exactly `size` points; the last chunk of a metric, or of a series, may have fewer."""
    last: tuple[ExportedMetric, int, int] | None = None
    rest = Points.empty()
    for metric, points in found:
        starts = [*(series_starts(points) if by_series else [0] * bool(len(points))), len(points)]
        for first, end in itertools.pairwise(starts):
            part = points.select(slice(first, end))
            new = (metric, int(part.rank[0]), int(part.attempt[0])) if by_series else (metric, 0, 0)
            if last is not None and len(rest) and new != last:
                yield last[0], rest
                rest = Points.empty()
            last, part = new, Points.concat([rest, part]) if len(rest) else part
            full = len(part) // size * size
            for start in range(0, full, size):
                yield metric, part.select(slice(start, start + size))
            rest = part.select(slice(full, None))
    if last is not None and len(rest):
        yield last[0], rest


def sizes_of(past: Past) -> dict[str, int]:
    """Return an estimate of the points of each metric; {} if the files keep changing."""
    for _ in range(RELISTS):
        try:
            return take_snapshot(RunFolder(past.path)).counts()
        except FileNotFoundError:
            continue  # merged or removed meanwhile: list again
    return {}


def _together(past: Past, metrics: Sequence[ExportedMetric]) -> Iterator[tuple[ExportedMetric, Points]]:
    points = in_order(with_sorted_names(past.points([metric.recorded for metric in metrics])))
    for metric in metrics:
        code = points.names.index(metric.recorded) if metric.recorded in points.names else -1
        first, last = np.searchsorted(points.name, [code, code + 1]) if code >= 0 else (0, 0)
        yield metric, _scaled(points.select(slice(first, last)), metric)


def _scaled(points: Points, metric: ExportedMetric) -> Points:
    return points if metric.factor == 1.0 else replace(points, value=points.value * metric.factor)
