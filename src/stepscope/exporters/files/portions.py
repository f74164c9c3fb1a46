"""Read the points of metrics in portions that fit into memory, however long a metric is."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.exporters.files.spans import BY_SEQUENCE, PORTION, by_span, count
from stepscope.store.layout import RunFolder
from stepscope.store.points import Points, in_order, series_starts, with_sorted_names
from stepscope.store.reader import RELISTS
from stepscope.store.snapshot import take_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.reader import Past


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
            yield from _whole(past, waiting)
            waiting, held = [], 0
        if size > PORTION:
            for points in by_span(past, {metric.recorded}, BY_SEQUENCE):
                yield metric, _scaled(points, metric)
        else:
            waiting.append(metric)
            held += size
    yield from _whole(past, waiting)


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
            whole = len(part) // size * size
            for start in range(0, whole, size):
                yield metric, part.select(slice(start, start + size))
            rest = part.select(slice(whole, None))
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


def _whole(past: Past, metrics: Sequence[ExportedMetric]) -> Iterator[tuple[ExportedMetric, Points]]:
    """Read metrics together."""
    points = in_order(with_sorted_names(past.points([metric.recorded for metric in metrics])))
    for metric in metrics:
        code = points.names.index(metric.recorded) if metric.recorded in points.names else -1
        first, last = np.searchsorted(points.name, [code, code + 1]) if code >= 0 else (0, 0)
        yield metric, _scaled(points.select(slice(first, last)), metric)


def _scaled(points: Points, metric: ExportedMetric) -> Points:
    return points if metric.factor == 1.0 else replace(points, value=points.value * metric.factor)
