"""The differences between the clocks of a run's nodes, read from the ends of a few steps and from heartbeats."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.clocks import REFERENCE, ClockOffset, StepEnds, from_steps, judged
from stepscope.core.ring import NO_STEP
from stepscope.store.layout import RunFolder
from stepscope.store.parquet import Selection
from stepscope.store.sealed import open_sealed
from stepscope.store.states import read_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.store.reader import Past
    from stepscope.store.states import NodeState

    Range = tuple[int, int]

STEP = "step_seconds"
STEPS = 32
"""Steps that are read at each end of the steps that nodes have in common."""
MOST_RANGES = 8
"""Different ranges of common steps that are read in one attempt; other nodes have their heartbeats."""
KEPT_SECONDS = 20.0
"""Seconds for which the offsets of a run are not estimated again."""
MOST_KEPT = 64


class OffsetCache:
    """The offsets of the runs that were read last. Thread-safe: equal questions at the same time are answered once."""

    def __init__(self) -> None:
        """Know none."""
        self._lock = threading.Lock()
        self._found: dict[Any, tuple[float, dict[str, ClockOffset]]] = {}
        self._under_way: dict[Any, threading.Lock] = {}

    def get(self, key: Any, estimate: Callable[[], dict[str, ClockOffset]]) -> dict[str, ClockOffset]:
        """Return the offsets that are kept under a key, if they are not old; otherwise estimate them."""
        with self._lock:
            turn = self._under_way.setdefault(key, threading.Lock())
        with turn:
            found = self._kept(key)
            if found is None:
                found = estimate()
                self._keep(key, found)
        return found

    def _kept(self, key: Any) -> dict[str, ClockOffset] | None:
        with self._lock:
            at, found = self._found.get(key, (-KEPT_SECONDS, None))
            return found if time.monotonic() - at < KEPT_SECONDS else None

    def _keep(self, key: Any, found: dict[str, ClockOffset]) -> None:
        with self._lock:
            self._found[key] = time.monotonic(), found
            while len(self._found) > MOST_KEPT:
                oldest = next(iter(self._found))
                del self._found[oldest]
                self._under_way.pop(oldest, None)


_KNOWN = OffsetCache()


def clock_offsets(past: Past) -> dict[str, ClockOffset]:
    """Return by how much each node's clock is ahead of that of the node with rank 0, in the last attempt.

    It reads two short ranges of steps of one rank per node, in each attempt.
    """
    nodes = read_nodes(RunFolder(past.path))[0]
    if len({node.node for node in nodes}) < 2:
        return {node.node: ClockOffset(0.0, 0.0, REFERENCE) for node in nodes}
    key = (str(past.path), tuple(sorted((node.node, node.attempt) for node in nodes)))
    return _KNOWN.get(key, lambda: _estimated(past, nodes))


def node_seconds(past: Past) -> dict[str, float]:
    """Return the seconds to subtract from the times of each node; nodes that need no correction are left out."""
    return {node: offset.seconds for node, offset in clock_offsets(past).items() if offset.seconds}


def true_events(past: Past) -> list[dict[str, Any]]:
    """Return the events of a run by one clock, ordered by time."""
    return past.events(offsets=node_seconds(past))


def rank_seconds(past: Past, attempt: int) -> dict[int, float]:
    """Return the seconds to subtract from the times of each rank in an attempt, and of the nodes' own samples."""
    seconds = node_seconds(past)
    if not seconds:
        return {}
    folder = RunFolder(past.path)
    found = {
        rank: seconds[node.node]
        for node in read_nodes(folder)[0]
        if node.attempt == attempt and node.node in seconds
        for rank in node.ranks
    }
    for span in folder.units():  # only the files tell which watcher has which negative number
        if span.writer.attempt == attempt and span.writer.node in seconds:
            ranks = open_sealed(span.path).last_seq
            found |= {int(rank): seconds[span.writer.node] for rank in ranks if rank.startswith("-")}
    return found


def _estimated(past: Past, nodes: list[NodeState]) -> dict[str, ClockOffset]:
    """Return the offsets, from the last attempt to the first: a node that is in several has that of the last."""
    found: dict[str, ClockOffset] = {}
    beats = {node.node: node.ahead_seconds for node in nodes}
    zero = 0.0
    for attempt in sorted({node.attempt for node in nodes}, reverse=True):
        own = {node.node: sorted(node.ranks) for node in nodes if node.attempt == attempt and node.ranks}
        if not own:
            continue
        first = min(own, key=lambda node: own[node][0])
        if not found:
            zero = beats[first]
            found[first] = ClockOffset(0.0, 0.0, REFERENCE)
        base = found.get(first) or judged(None, _beat(beats, first, zero))
        missing = {node: ranks[0] for node, ranks in own.items() if node not in found}
        ends = _common_ends(past, attempt, {**missing, first: own[first][0]}, first) if missing else {}
        for node in missing:
            steps = from_steps(*ends[node]) if node in ends else None
            if steps is not None:
                steps = replace(steps, seconds=steps.seconds + base.seconds)
            found[node] = judged(steps, _beat(beats, node, zero))
        found.setdefault(first, base)
    return found


def _beat(beats: Mapping[str, float], node: str, zero: float) -> float | None:
    """Return what the heartbeats tell; None if they tell nothing."""
    return beats[node] - zero if any(beats.values()) else None


def _common_ends(
    past: Past, attempt: int, ranks: Mapping[str, int], first: str
) -> dict[str, tuple[StepEnds, StepEnds]]:
    """Return when each node, and the first one beside it, ended the steps that both have."""
    spans = _spans(past, attempt)
    whole = spans.get(ranks[first])
    by_range: dict[Range, list[str]] = {}
    for node, rank in ranks.items():
        own = spans.get(rank)
        if own and whole and node != first and own[1] >= whole[0] and whole[1] >= own[0]:
            by_range.setdefault((max(own[0], whole[0]), min(own[1], whole[1])), []).append(node)
    found: dict[str, tuple[StepEnds, StepEnds]] = {}
    for ends, some in sorted(by_range.items(), key=lambda item: -len(item[1]))[:MOST_RANGES]:
        read = _ends(past, attempt, [ranks[first], *(ranks[node] for node in some)], ends)
        found |= {node: (read[ranks[node]], read[ranks[first]]) for node in some}
    return found


def _spans(past: Past, attempt: int) -> dict[int, Range]:
    """Return the first and the last step of each rank."""
    blocks = past.totals([STEP])
    kept = (blocks.attempt == attempt) & (blocks.low_step != NO_STEP)
    columns = (blocks.rank, blocks.low_step, blocks.high_step)
    return {rank: (low, high) for rank, low, high in zip(*(one[kept].tolist() for one in columns), strict=True)}


def _ends(past: Past, attempt: int, ranks: list[int], ends: Range) -> dict[int, StepEnds]:
    """Return when ranks ended the first and the last steps of a range."""
    first, last = ends
    hole = (first + STEPS, last - STEPS) if last - first > 2 * STEPS else None
    chosen = Selection({STEP}, ranks, (attempt,), ends, hole=hole)
    points = past.read(lambda snapshot, connection: snapshot.points(chosen, connection))
    inside = np.ones(len(points), bool) if hole is None else (points.step < hole[0]) | (points.step > hole[1])
    found = {}
    for rank in ranks:
        own = inside & (points.rank == rank)
        found[rank] = StepEnds(points.step[own], points.time[own] / 1e6)
    return found
