"""The state of a run: what its watchers last wrote, and what their silence means."""

from __future__ import annotations

import functools
import json
import math
import time
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stepscope.core.clock import boot_id
from stepscope.core.endings import INTERRUPTED, PROBABLY_OUT_OF_MEMORY
from stepscope.core.numbers import format_bytes
from stepscope.store.beats import ServerClock, ahead_of_server
from stepscope.store.layout import RunFolder, Writer, age_of, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

LOST_AFTER = 30.0
"""Seconds without a heartbeat after which a watcher counts as lost."""
ABNORMAL = ("failed", "killed", "oom-killed", "preempted", "lost", INTERRUPTED)
INTERRUPT_SECONDS = 10.0
"""A launcher may end its ranks with SIGTERM up to this many seconds before another rank notices Ctrl-C itself."""
NEARLY_FULL = 0.9
"""Share of the memory limit from which an unobserved end is attributed to memory."""
KILLED = "died, cause unknown"
MOST_FILES, MOST_RANKS = 4096, 50_000
"""Maximum node files, and ranks over all nodes, read of one run; no real run has more."""
MOST_BYTES = 1 << 24
"""Maximum bytes of a node's file."""
OVERLAP = 5.0
"""Seconds for which two processes have one rank before it is reported: the clocks of nodes may differ by a second."""
MOST_TWICE = 4
"""Ranks that were started twice which are reported one by one."""
COMPUTED = ("ahead_seconds",)
"""Fields of a node that are not in its file."""
_SERVER_CLOCK = ServerClock()
HIGHEST = 2**31 - 1
"""The highest rank or attempt number; the lowest is its negative."""


@dataclass
class RankState:
    """The state of one rank."""

    state: str = "running"
    cause: str = ""
    pid: int = 0
    rows: int = 0
    lost: int = 0
    refused: int = 0
    step: int | None = None
    steps: int | None = None
    """Completed steps; None unless one watcher observed all of them."""
    step_seconds: float | None = None
    """Sum of `step_seconds` over these steps."""
    started: int = 0
    """Microseconds since 1970 UTC."""
    ended: int | None = None
    """Microseconds since 1970 UTC; None while it runs."""
    stall: str = ""
    """stalled or hung, as its watcher sees it; empty while it moves."""
    inferred: bool = False
    """Whether the end was inferred afterwards rather than observed."""
    memory: int | None = None
    """Resident bytes of its processes at the last sample."""
    memory_limit: int | None = None
    """Memory limit of its cgroup in bytes."""
    own_seconds: float | None = None
    """Seconds of a usual step in which it does not wait for other ranks, in its newest steps; None if unknown."""
    usual_seconds: float | None = None
    """Seconds of a usual step, in its newest steps; None if unknown."""
    pace: dict[str, Any] = field(default_factory=dict)
    """Its timing in the newest steps, as `stepscope.analysis.stragglers.pace.StepTiming.of` reads it."""


@dataclass
class NodeState:
    """The state of one watcher and its ranks."""

    node: str
    attempt: int
    counter: int = 0
    time: int = 0
    """Wall time of the last heartbeat, microseconds since 1970 UTC."""
    monotonic_ns: int = 0
    boot_id: str = ""
    ended: bool = False
    ranks: dict[int, RankState] = field(default_factory=dict)
    wrong: str = ""
    """The critical alert at the time when the last rank ended; empty if there was none."""
    ahead_seconds: float = 0.0
    """By how much its clock is ahead of the file server's; not stored, but found by `read_nodes`."""

    def save(self, folder: RunFolder) -> None:
        """Replace the node's file; raise OSError if that fails."""
        kept = {key: value for key, value in self.__dict__.items() if key not in COMPUTED}
        facts = {**kept, "ranks": {str(rank): state.__dict__ for rank, state in self.ranks.items()}}
        replace(folder.node_file(Writer(self.node, self.attempt)), json.dumps(facts).encode())

    @classmethod
    def load(cls, path: Path) -> NodeState:
        """Read a node's file; raise ValueError if it is not one."""
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES} bytes, as no node's is")
        facts: Any = json.loads(data)
        if not isinstance(facts, dict) or "node" not in facts or not isinstance(facts.get("ranks", {}), dict):
            raise ValueError(f"{path.name} does not describe a node")
        ranks = {int(rank): RankState(**_known(RankState, state)) for rank, state in facts.pop("ranks", {}).items()}
        numbers = (*ranks, facts.get("attempt", 0))
        wrong = next((one for one in numbers if isinstance(one, int) and abs(one) > HIGHEST), None)
        if wrong is not None:
            raise ValueError(f"no rank or attempt has the number {str(wrong)[:40]}")
        return cls(**_known(cls, facts), ranks=ranks)

    def silent_seconds(self, path: Path) -> float:
        """Return the seconds since this watcher's last heartbeat.

        On its own machine by the monotonic clock, which clock adjustments cannot move; elsewhere by the file's time.
        """
        if self.boot_id and self.boot_id == boot_id():
            return (time.monotonic_ns() - self.monotonic_ns) / 1e9
        changed = path.stat().st_mtime
        silent = time.time() - changed
        # Only in doubt: a reader whose clock is ahead must not take every node for lost.
        return silent if silent <= LOST_AFTER else _SERVER_CLOCK.now(path.parent) - changed

    def true(self, moment: int) -> float:
        """Return a time of this node, in microseconds since 1970, by the clock that all nodes share."""
        return moment - self.ahead_seconds * 1e6


_TYPES: dict[str, Any] = {
    "str": str,
    "int": int,
    "bool": bool,
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
    "dict[str, Any]": dict,
}


def _known(cls: type, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that this version knows; raise TypeError for a value of the wrong type."""
    found = {}
    for name, kind in _fields(cls):
        if name in facts:
            value = found[name] = facts[name]
            if not isinstance(value, _TYPES[kind]):
                raise TypeError(f"{name} is {value!r:.40}, not {kind}")
    return found


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, str], ...]:
    """Return name and type of each field except the ranks."""
    return tuple((one.name, str(one.type)) for one in fields(cls) if one.name not in {"ranks", *COMPUTED})


def read_nodes(folder: RunFolder) -> tuple[list[NodeState], list[str]]:
    """Return the nodes of a run and the problems of their files; ranks of silent watchers are marked lost."""
    nodes: list[NodeState] = []
    problems: list[str] = []
    paths = sorted((folder.path / "nodes").glob("[!.]*.json"))
    if len(paths) > MOST_FILES:
        problems.append(f"nodes: {len(paths) - MOST_FILES} of {len(paths)} files were passed over: too many for a run")
    changed: list[float] = []
    count = 0
    for path in paths[:MOST_FILES]:
        try:
            node = NodeState.load(path)
            count += len(node.ranks)
            if count > MOST_RANKS:
                problems.append(f"{path.name}: its ranks were passed over: more than {MOST_RANKS} are no run")
                break
            if not node.ended and node.silent_seconds(path) > LOST_AFTER:
                _mark_lost(node.ranks.values())
            changed.append(path.stat().st_mtime)
            nodes.append(node)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            problems.append(f"{path.name}: {error}")
    for node, seconds in zip(nodes, ahead_of_server(list(zip(_beats(nodes), changed, strict=True))), strict=True):
        node.ahead_seconds = seconds
    problems += _told_twice(started_twice(nodes))
    if not nodes and not problems and age_of(folder.run_file, time.time()) > LOST_AFTER:
        cause = "it ended before a watcher came, or nobody could write to its folder"
        nodes.append(NodeState("", 0, ended=True, ranks={0: RankState("lost", cause, inferred=True)}))
    return nodes, problems


def _beats(nodes: Iterable[NodeState]) -> list[float]:
    return [node.time / 1e6 for node in nodes]


def unseen_end(rank: RankState) -> tuple[str, str]:
    """Return state and cause of a rank whose end no process observed, judged by its last memory use."""
    if rank.memory and rank.memory_limit and rank.memory >= NEARLY_FULL * rank.memory_limit:
        limit, used = format_bytes(rank.memory_limit), format_bytes(rank.memory)
        return "oom-killed", f"{PROBABLY_OUT_OF_MEMORY}: limit {limit}, last seen with {used}; nobody saw the end"
    return "killed", KILLED


def _mark_lost(ranks: Iterable[RankState]) -> None:
    for rank in ranks:
        if rank.state == "running":
            state, cause = unseen_end(rank)
            lost = ("lost", "its watcher has said nothing for 30 s")
            rank.state, rank.cause = lost if state == "killed" else (state, cause)
            rank.inferred = True


def newest_attempt(nodes: Iterable[NodeState]) -> int:
    """Return the last attempt of a run; 0 without any.

    An attempt of a few ranks whose numbers other processes still had is none: it holds the rows of a rank that was
    started twice, and the job goes on in the attempt before.
    """
    every = list(nodes)
    ranks = {node.attempt: set[int]() for node in every}
    for node in every:
        ranks[node.attempt].update(node.ranks)
    last = max(ranks, default=0)
    twice = started_twice(every) if len(ranks) > 1 else []
    for attempt in sorted(ranks, reverse=True):
        second = {rank for rank, (_, later) in twice if later.attempt == attempt}
        if not ranks[attempt] or second != ranks[attempt]:
            return attempt
        if not any(second < ranks[node.attempt] for rank, (node, later) in twice if later.attempt == attempt):
            return attempt
    return last


def started_twice(nodes: Iterable[NodeState]) -> list[tuple[int, tuple[NodeState, NodeState]]]:
    """Return the ranks that two processes had at the same time, with the node of the first and of the second."""
    lives: dict[int, list[tuple[float, float, NodeState]]] = {}
    for node in nodes:
        for number, rank in node.ranks.items():
            if rank.started:
                lives.setdefault(number, []).append((node.true(rank.started), node.true(rank.ended or node.time), node))
    found = []
    for number, some in sorted(lives.items()):
        some.sort(key=lambda life: life[0])
        for (_, until, first), (began, _, second) in pairwise(some):
            if until - began > OVERLAP * 1e6:
                found.append((number, (first, second)))
    return found


def _told_twice(twice: list[tuple[int, tuple[NodeState, NodeState]]]) -> Iterator[str]:
    """Yield a sentence for each pair of processes that claimed the same rank; a few are enough."""
    for number, (first, second) in twice[:MOST_TWICE]:
        places = first.node if first.node == second.node else f"{first.node} and {second.node}"
        where = f"on {places}, as attempts {first.attempt} and {second.attempt}"
        yield f"rank {number} was recorded by two processes at once, {where}; give each process a rank of its own"
    if len(twice) > MOST_TWICE:
        yield f"{len(twice) - MOST_TWICE} more ranks were recorded by two processes at once"


def overall(nodes: list[NodeState]) -> tuple[str, str]:
    """Return state and cause of a run: those of its last attempt, by its earliest abnormal end.

    The cause of a finished run is what was still wrong at its end, such as a NaN loss.
    """
    last = newest_attempt(nodes)
    current = [node for node in nodes if node.attempt == last]
    ranks = [rank for node in current for rank in node.ranks.values()]
    bad = [(node, rank) for node in current for rank in node.ranks.values() if rank.state in ABNORMAL]
    if bad:
        shown = _decisive(bad)
        return shown.state, shown.cause
    if ranks and all(rank.state == "finished" for rank in ranks):
        return "finished", next((node.wrong for node in current if node.wrong), "")
    return "running", ""


def _decisive(bad: list[tuple[NodeState, RankState]]) -> RankState:
    """Return the rank that determines how the run ended: the first to end, unless a launcher ended it after Ctrl-C.

    Ends on different nodes are compared without the differences of their clocks.
    """
    ends = [math.inf if rank.ended is None else node.true(rank.ended) for node, rank in bad]
    began = min(range(len(bad)), key=ends.__getitem__)
    first = bad[began][1]
    if first.ended is None or not first.cause.startswith("killed by SIGTERM"):
        return first
    until = ends[began] + INTERRUPT_SECONDS * 1e6
    by_hand = (rank for (_, rank), end in zip(bad, ends, strict=True) if rank.state == INTERRUPTED and end < until)
    return next(by_hand, first)
