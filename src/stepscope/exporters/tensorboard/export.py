"""Write a run as TensorBoard's event files: a folder for `tensorboard --logdir`, one file for each rank and attempt.

A tag is the metric's name. Rank 0 and its machine are in the folder itself, others in `rank1`, `node1` and `attempt1`
below it: TensorBoard shows them as separate runs. A point without a step, such as a sample of the machine, gets the
seconds since the start of the run as its step.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.exporters.files.portions import portions
from stepscope.exporters.tensorboard.bulk import scalars
from stepscope.exporters.tensorboard.records import first_event, place_of
from stepscope.store.points import Points, series_starts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.reader import Past

MICROSECOND = 1_000_000


def write(past: Past, metrics: Sequence[ExportedMetric], folder: Path) -> None:
    """Write the event files into a folder that is empty.

    Raises:
        OSError: they cannot be written.
    """
    created = int(past.meta.get("created") or 0)
    name = f"events.out.tfevents.{created // MICROSECOND:010d}.stepscope"
    known: set[Path] = set()
    for metric, points in portions(past, metrics):
        starts = [*series_starts(points).tolist(), len(points)]
        for first, last in itertools.pairwise(starts):
            part = points.select(slice(first, last))
            attempt = f"attempt{part.attempt[0]}" if part.attempt[0] else ""
            path = folder / place_of(int(part.rank[0])) / attempt / name
            if path not in known:
                known.add(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(first_event(created / MICROSECOND))
            _append(path, metric.written, part, created)


def _append(path: Path, tag: str, points: Points, created: int) -> None:
    seconds = np.maximum(points.time - created, 0) // MICROSECOND
    step = np.where(points.step == NO_STEP, seconds, points.step)
    with path.open("ab") as stream:
        for piece in scalars(tag, points.time / MICROSECOND, step, points.value):
            stream.write(piece)
