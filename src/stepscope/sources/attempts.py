"""Read the attempts of a run: when each rank started, stepped, stalled and ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.compare.quantity import is_loss
from stepscope.analysis.cost import logged_time
from stepscope.analysis.cost.ledger import Attempt, stalls_of
from stepscope.analysis.cost.logged_time import Logged
from stepscope.core.events import ours
from stepscope.store.curves import spans
from stepscope.store.layout import RunFolder
from stepscope.store.parquet import Selection
from stepscope.store.snapshot import take_snapshot
from stepscope.store.states import read_nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from stepscope.core.arrays import Floats, Integers
    from stepscope.store.points import Points
    from stepscope.store.reader import Past
    from stepscope.store.states import NodeState, RankState

STEP, PHASE = "step_seconds", "phase/"
OWN = "stepscope"
"""Format of our own exports: Stepscope recorded the runs in them."""
FEWEST_RANKS = 32
"""Ranks that stand for all of a run, at the least."""
MOST_LOGGED = 8
"""Metrics to search for the times of steps, in a log that has no step times."""


def attempts_of(past: Past, ranks: Collection[int] | None = None) -> list[Attempt]:
    """Return every rank of every attempt of a run; of a run that we recorded only these ranks, if any are given."""
    if is_foreign(past):
        return _logged_attempts(past)
    names = past.names()
    timed = {STEP, *(name for name in names if name.startswith(PHASE))}
    chosen = Selection(timed, ranks)
    rows = past.read(lambda snapshot, connection: snapshot.points(chosen, connection)) if STEP in names else None
    steps = {} if rows is None else _by_rank(rows)
    events = ours(past.events())
    known: dict[tuple[int, int], tuple[NodeState, RankState]] = {
        (number, node.attempt): (node, rank)
        for node in nodes_of(past)
        for number, rank in node.ranks.items()
        if ranks is None or number in ranks
    }
    found = []
    for key in sorted({*known, *steps}, key=lambda key: (key[1], key[0])):
        end, seconds, step, phases = steps.get(key, (np.empty(0), np.empty(0), np.empty(0, np.int64), {}))
        started, ended, state = _life(*known[key]) if key in known else (np.nan, np.nan, "running")
        if not started > 0 and len(end):
            started = float(end[0] - seconds[0])
        ended = max(filter(math.isfinite, (ended, *end[-1:].tolist())), default=math.nan)
        own = [event for event in events if (event.get("rank"), event.get("attempt")) == key]
        stalls = stalls_of(own, ended)
        found.append(Attempt(key[1], key[0], started, ended, state, end, seconds, step, phases, stalls))
    return found


def some_ranks(past: Past, most: int) -> list[int] | None:
    """Return ranks of whole nodes, evenly chosen, that have about `most` steps together; None if all have no more."""
    steps = counts_of(past).get(STEP, 0)
    nodes = [sorted(node.ranks) for node in sorted(nodes_of(past), key=lambda node: min(node.ranks, default=0))]
    total = len({rank for ranks in nodes for rank in ranks})
    if steps <= most or total < FEWEST_RANKS:
        return None
    kept = max(FEWEST_RANKS, total * most // steps)
    every = max(1, total // kept)
    return sorted({rank for ranks in nodes[::every] for rank in ranks}) if every > 1 else None


def is_foreign(past: Past) -> bool:
    """Return whether another tool recorded the run, so that only its log is known."""
    source = past.meta.get("imported")
    return isinstance(source, dict) and source.get("format") != OWN


def nodes_of(past: Past) -> list[NodeState]:
    """Return the state of each watcher of a run."""
    return read_nodes(RunFolder(past.path))[0]


def counts_of(past: Past) -> dict[str, int]:
    """Return the number of points of each metric of a run."""
    return take_snapshot(RunFolder(past.path)).counts()


def logged_series(past: Past) -> dict[tuple[int, int], dict[str, Logged]]:
    """Return the series of another tool's log that give times, by rank and attempt."""
    names = past.names()
    chosen = [name for name in names if logged_time.wanted(name)]
    if STEP not in names:
        chosen += sorted(names, key=lambda name: (name != "loss", not is_loss(name), name))[:MOST_LOGGED]
    found: dict[tuple[int, int], dict[str, Logged]] = {}
    for name, key, part in series_in(past.points(chosen)):
        # A log without times: every point has the time of the start.
        is_untimed = len(part) > 1 and part.time.min() == part.time.max()
        time = np.full(len(part), np.nan) if is_untimed else part.time / 1e6
        found.setdefault(key, {})[name] = Logged(part.step, time, part.value)
    return found


def _logged_attempts(past: Past) -> list[Attempt]:
    found = logged_series(past)
    attempts = []
    for node in nodes_of(past):
        for rank, state in node.ranks.items():
            started, ended, end_state = _life(node, state)
            series = found.get((rank, node.attempt), {})
            attempts.append(logged_time.attempt_of_log(series, (started, ended), node.attempt, rank, end_state))
    return attempts


def _life(node: NodeState, rank: RankState) -> tuple[float, float, str]:
    """Return start, end (or last heartbeat) and state of a rank."""
    return rank.started / 1e6 or np.nan, (rank.ended or node.time) / 1e6 or np.nan, rank.state


_Steps = tuple["Floats", "Floats", "Integers", dict[str, "Floats"]]


def _by_rank(rows: Points) -> dict[tuple[int, int], _Steps]:
    """Return the steps of each rank and attempt: end, seconds, index, and the phases of the same records."""
    found: dict[tuple[int, int], _Steps] = {}
    sequences: dict[tuple[int, int], Integers] = {}
    for name, key, part in sorted(series_in(rows), key=lambda entry: entry[0] != STEP):
        if name == STEP:
            sequences[key] = part.seq
            found[key] = part.time / 1e6, part.value, part.step, {}
        elif key in found:
            found[key][3][name.removeprefix(PHASE)] = at_keys(sequences[key], part.seq, part.value)
    return found


def at_keys(wanted: Integers, keys: Integers, values: Floats, absent: float = math.nan) -> Floats:
    """Return the value of each wanted key, from keys and their values; `absent` where there is none.

    Wanted keys are ascending; keys are in any order, and the last value of a repeated key wins.
    """
    found = np.full(len(wanted), absent)
    index = np.searchsorted(wanted, keys)
    match = index < len(wanted)
    match[match] = wanted[index[match]] == keys[match]
    found[index[match]] = values[match]
    return found


def series_in(rows: Points) -> Iterator[tuple[str, tuple[int, int], Points]]:
    """Yield name, (rank, attempt) and points of each series; `rows` holds the series one after another."""
    for first, last in spans(rows):
        key = int(rows.rank[first]), int(rows.attempt[first])
        yield rows.names[rows.name[first]], key, rows.select(slice(first, last))
