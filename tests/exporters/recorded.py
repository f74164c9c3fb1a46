"""Runs on disk without a training: sealed units, tails and events as the watcher leaves them."""

from __future__ import annotations

import numpy as np

from stepscope.core.events import WATCHERS
from stepscope.core.ring import NO_STEP
from stepscope.store.drain import Drain, OwnRows
from stepscope.store.layout import FORMAT_VERSION, RunFolder, Writer
from stepscope.store.points import NO_NS, Points
from stepscope.store.sealed import write_sealed
from stepscope.store.states import NodeState, RankState

CREATED = 1_700_000_000_000_000
"""Microseconds since 1970 UTC."""
WRITER = Writer("node.abc", 0)
PAIR = (CREATED * 1000, 0)


def points_of(values, rank=0, attempt=0, first=0):
    """Make points of {name: values}: seq and step count from `first`, times are one millisecond apart."""
    parts = []
    for name, numbers in values.items():
        count = len(numbers)
        seq = np.arange(first, first + count, dtype=np.int64)
        same = [np.full(count, number, np.int32) for number in (0, rank, attempt)]
        value, ns = np.array(numbers, np.float64), np.full(count, NO_NS, np.int64)
        parts.append(Points([name], *same, seq, seq.copy(), CREATED + seq * 1000, value, ns))
    return Points.concat(parts)


def durations(name, ns, first=0):
    """Make points that are durations, given in nanoseconds."""
    points = points_of({name: [number / 1e9 for number in ns]}, first=first)
    points.ns[:] = ns
    return points


def without_steps(points):
    """Return the points as samples that belong to no step."""
    points.step[:] = NO_STEP
    return points


def make_run(root, run="run-1", project="mnist", config=None, state="finished"):
    """Make a run without any point, and return its folder."""
    folder = RunFolder(root / project / run)
    folder.make()
    facts = {"format": FORMAT_VERSION, "id": run, "name": run, "project": project, "created": CREATED, "config": config}
    folder.describe(facts)
    ranks = {0: RankState(state=state, step=4, started=CREATED, ended=CREATED + 2_500_000)}
    NodeState(WRITER.node, 0, time=CREATED, ended=True, ranks=ranks).save(folder)
    return folder


def seal_points(folder, points, number=0, writer=WRITER):
    """Seal points as the unit of one tail, and return its file."""
    last = {str(rank): int(points.seq[points.rank == rank].max()) for rank in np.unique(points.rank)}
    stem = folder.unit_stem(writer, number, number)
    return write_sealed(folder.path / "metrics", stem, points, last_seq=last)


def leave_tail(folder, rows, rank=0, first=0, writer=WRITER):
    """Leave rows, each {name: value}, in a tail that nobody sealed."""
    own = OwnRows(rank, first)
    drain = Drain(folder, writer, own)
    for number, row in enumerate(rows):
        own.add(row, (first + number) * 1_000_000)
    drain.write_own(PAIR)
    drain.rotate()


def tell(folder, kind, **fields):
    """Write an event of rank 0, one millisecond after the start; one of the watcher has no sequence."""
    drain = Drain(folder, WRITER, OwnRows(-1, 0))
    own = {} if kind in WATCHERS else {"sequence": 7}
    drain.write_events([{"kind": kind, "step": 3, **own, "monotonic_ns": 1_000_000, **fields}], 0, PAIR)
