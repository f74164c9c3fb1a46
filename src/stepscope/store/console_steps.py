"""The step of each line of a console: the last one that its rank had completed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.ring import NO_STEP
from stepscope.store.parquet import Selection

if TYPE_CHECKING:
    from collections.abc import Sequence

    import duckdb

    from stepscope.core.console_line import ConsoleLine
    from stepscope.store.snapshot import Snapshot

STEP_METRIC = "step_seconds"
LOOKED_BACK = 3600.0
"""Seconds before the first line in which a completed step is looked for: most hangs are shorter."""


def steps_of(
    lines: Sequence[ConsoleLine], snapshot: Snapshot, connection: duckdb.DuckDBPyConnection
) -> tuple[list[ConsoleLine], list[str]]:
    """Return the lines with their steps, and what could not be read; a line without such a step keeps None."""
    counts = snapshot.counts()
    names = [STEP_METRIC] if STEP_METRIC in counts else sorted(counts, key=lambda name: -counts[name])[:1]
    if not lines or not names:
        return list(lines), []
    ends = min(line.time for line in lines) - LOOKED_BACK, max(line.time for line in lines)
    ranks, attempts = {line.rank for line in lines}, {line.attempt for line in lines}
    times = round(ends[0] * 1e6), round(ends[1] * 1e6)
    points, problems = snapshot.points(Selection(set(names), ranks, attempts, time_range=times), connection)
    points = points.select(points.step != NO_STEP)
    order = np.lexsort((points.time, points.attempt, points.rank))  # in one go: there may be thousands of ranks
    owners, times_of, step = points.rank[order], points.time[order], points.step[order]
    tries = points.attempt[order]
    found = list(lines)
    for (rank, attempt), at in _by_rank(lines).items():
        begin, end = np.searchsorted(owners, [rank, rank + 1])
        first, last = begin + np.searchsorted(tries[begin:end], [attempt, attempt + 1])
        moments = [round(lines[index].time * 1e6) for index in at]
        places = first + np.searchsorted(times_of[first:last], moments, side="right")
        for index, place in zip(at, places, strict=True):
            if place > first:
                found[index] = lines[index]._replace(step=int(step[place - 1]))
    return found, problems


def _by_rank(lines: Sequence[ConsoleLine]) -> dict[tuple[int, int], list[int]]:
    """Return the positions of the lines of each rank and attempt."""
    found: dict[tuple[int, int], list[int]] = {}
    for index, line in enumerate(lines):
        found.setdefault((line.rank, line.attempt), []).append(index)
    return found
