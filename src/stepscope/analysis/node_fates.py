"""How the nodes of a run came and went: which joined late, left, was preempted, came back, failed or died.

What happens to one node ends the others soon after: their ranks fail in a collective, and launchers end the rest. So
of an attempt whose nodes end one after the other, only the first ends tell what happened to a node.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from stepscope.core.endings import INTERRUPTED, end_words
from stepscope.core.node_names import short_node
from stepscope.core.numbers import format_duration, format_items

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

JOINED_LATE, CAME_BACK = "joined late", "came back"
LEFT, PREEMPTED, FAILED, DIED = "left", "preempted", "failed", "died"
KINDS = (JOINED_LATE, CAME_BACK, LEFT, PREEMPTED, FAILED, DIED)
LATE_SECONDS = 60.0
"""Seconds after the start of the others from which a node joined late, or before their end from which it left."""
MORE_STEPS = 2
"""Steps that the other nodes make after a node has left; it may be one behind at the common end."""
TOGETHER = 10.0
"""Seconds within which the first ends of an attempt may be ends of their own; later ones may follow from them."""
FOLLOWS = 3600.0
"""Seconds within which the end of another node explains an end: collectives time out after ten or thirty minutes."""
MOST_NAMED = 4
"""Nodes with the same fate that a sentence names."""
ASKED = ("SIGTERM", "SIGUSR1", "SIGUSR2", "exit code 143")
"""Signs in a cause that something outside asked a process to end."""
ENDED_BY_OTHERS = ("SIGTERM", "SIGKILL", "SIGABRT")
"""Signals of launchers, and of NCCL's watchdog, that end ranks because another one has ended."""


@dataclass(frozen=True)
class RankLife:
    """How one rank of a node ended, or that it runs; times are seconds since 1970."""

    rank: int
    state: str = "running"
    cause: str = ""
    started: float | None = None
    ended: float | None = None
    step: int | None = None
    """Its last step."""


@dataclass(frozen=True)
class NodeLife:
    """What a node recorded of one attempt, by one clock for all nodes."""

    node: str
    attempt: int
    ranks: Sequence[RankLife]
    heard: float | None = None
    """Its last heartbeat, in seconds since 1970."""
    spread_seconds: float = 0.0
    """By how much its times may be wrong."""
    host: str = ""
    """What tells it apart from other machines, whatever it was started as; found by `node_fates`."""

    @property
    def started(self) -> float | None:
        """Return when its first rank started."""
        return min((rank.started for rank in self.ranks if rank.started), default=None)

    @property
    def ended(self) -> float | None:
        """Return when it ended, or was last heard of; None while a rank runs."""
        if any(rank.state == "running" for rank in self.ranks):
            return None
        return max((rank.ended for rank in self.ranks if rank.ended), default=self.heard)

    @property
    def step(self) -> int | None:
        """Return the newest step of its ranks."""
        return max((rank.step for rank in self.ranks if rank.step is not None), default=None)


@dataclass(frozen=True)
class NodeFate:
    """How a node came into an attempt of its run, and how it went."""

    node: str
    host: str
    attempt: int
    ranks: tuple[int, ...]
    arrival: str = ""
    """joined late, came back, or "": it was there from the start, or started again with all the others."""
    departure: str = ""
    """left, preempted, failed, died, or "": it is there, or ended with the others."""
    arrival_text: str = ""
    departure_text: str = ""

    @property
    def is_ordinary(self) -> bool:
        """Return whether there is nothing to tell."""
        return not self.arrival and not self.departure

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**asdict(self), "ranks": list(self.ranks)}


def node_fates(lives: Iterable[NodeLife]) -> list[NodeFate]:
    """Return the fate of each node in each attempt, in the order of attempts; a run of one host has none to tell."""
    by_attempt: dict[int, list[NodeLife]] = {}
    for life in _hosted([life for life in lives if life.ranks]):
        by_attempt.setdefault(life.attempt, []).append(life)
    every = list(by_attempt.values())
    if len({life.host for some in every for life in some}) < 2:
        return [_fate(life) for some in every for life in some]
    found: list[NodeFate] = []
    for place, some in enumerate(every):
        went = departures(some, every[place + 1] if place + 1 < len(every) else ())
        before = [life for earlier in every[:place] for life in earlier]
        came = [_arrival(life, some, before, found) for life in some]
        found += [_fate(life, arrival, went[life.node]) for life, arrival in zip(some, came, strict=True)]
    return found


def _hosted(lives: Sequence[NodeLife]) -> list[NodeLife]:
    """Return the lives by attempt and first rank, with their hosts; containers with one host name keep their marks."""
    count = Counter((life.attempt, short_node(life.node)) for life in lives)
    is_plain = max(count.values(), default=0) < 2
    ordered = sorted(lives, key=lambda life: (life.attempt, min(rank.rank for rank in life.ranks), life.node))
    return [replace(life, host=short_node(life.node) if is_plain else life.node) for life in ordered]


def _fate(life: NodeLife, arrival: tuple[str, str] = ("", ""), departure: tuple[str, str] = ("", "")) -> NodeFate:
    ranks = tuple(sorted(rank.rank for rank in life.ranks))
    (came, arrival_text), (went, departure_text) = arrival, departure
    return NodeFate(life.node, life.host, life.attempt, ranks, came, went, arrival_text, departure_text)


def _arrival(
    life: NodeLife, beside: Sequence[NodeLife], before: Sequence[NodeLife], fates: Sequence[NodeFate]
) -> tuple[str, str]:
    """Return how a node came: `beside` are the nodes of its attempt, `before` those of earlier ones, with `fates`."""
    if not before:
        late = _late(life, beside)
        return ("", "") if late is None else (JOINED_LATE, f"{format_duration(late)} after the others")
    last = before[-1].attempt
    there = [one for one in before if one.attempt == last]
    own = [one for one in before if one.host == life.host]
    if not own:
        return _new(life, {one.host for one in beside}, there)
    went = {fate.node: fate.departure for fate in fates if fate.attempt == last}
    if own[-1].attempt == last and (not went[own[-1].node] or len(set(went.values())) == 1):
        return "", ""  # it started again with all the others
    return CAME_BACK, f"as attempt {life.attempt}{_apart(own[-1].ended, life.started)}"


def _new(life: NodeLife, here: Collection[str], there: Sequence[NodeLife]) -> tuple[str, str]:
    """Return how a node came that no earlier attempt had; `here` are the hosts of its attempt, `there` the last one."""
    if not any(one.host in here for one in there):
        return "", ""  # the whole job runs on other nodes now
    mine = {rank.rank for rank in life.ranks}
    gone = (one.host for one in there if one.host not in here and not mine.isdisjoint(rank.rank for rank in one.ranks))
    old = next(gone, "")
    return JOINED_LATE, f"with attempt {life.attempt}{f', in place of {old}' if old else ''}"


def _late(life: NodeLife, beside: Sequence[NodeLife]) -> float | None:
    """Return by how many seconds a node started after the others; None if it started with them."""
    others = sorted((one.started, one.spread_seconds) for one in beside if one is not life and one.started is not None)
    if not others or life.started is None:
        return None
    usual, spread = others[(len(others) - 1) // 2]
    late = life.started - usual
    return late if late > LATE_SECONDS + spread + life.spread_seconds else None


def _apart(ended: float | None, started: float | None) -> str:
    is_known = ended is not None and started is not None and started > ended
    return f", {format_duration((started or 0.0) - (ended or 0.0))} after it was gone" if is_known else ""


def departures(beside: Sequence[NodeLife], later: Sequence[NodeLife] = ()) -> dict[str, tuple[str, str]]:
    """Return how each node of an attempt went, as kind and text; `later` are the nodes of the next attempt."""
    ends = {life.node: _end(life) for life in beside}
    cause = _cause(beside, ends)
    found = {life.node: _own_end(life, beside, cause, ends) for life in beside}
    hosts = {life.host for life in later}
    for life in beside if not hosts.isdisjoint(life.host for life in beside) else ():
        if not found[life.node][0] and life.host not in hosts:
            found[life.node] = LEFT, f"it is not in attempt {later[0].attempt}"
    return found


def _cause(beside: Sequence[NodeLife], ends: Mapping[str, tuple[str, str]]) -> NodeLife | None:
    """Return the node whose end came first, if it was before its time."""
    bad = [life for life in beside if ends[life.node][0] in (PREEMPTED, FAILED, DIED)]
    # A rank fails or is ended after its peer has died: where the clocks leave that open, the death is the cause.
    doubt = {life.node: 2 * life.spread_seconds * (ends[life.node][0] != DIED) for life in bad}
    return min(bad, key=lambda life: _when(life) + doubt[life.node], default=None)


def _own_end(
    life: NodeLife, beside: Sequence[NodeLife], cause: NodeLife | None, ends: Mapping[str, tuple[str, str]]
) -> tuple[str, str]:
    """Return how a node went; kind "" if it ended with the others, or because of another."""
    kind, text = ends[life.node]
    if kind == LEFT:
        return (kind, text) if any(_outlives(one, life) for one in beside) else ("", "")
    return ("", "") if cause is not None and _follows(life, cause, ends) else (kind, text)


def _end(life: NodeLife) -> tuple[str, str]:
    """Return how a node went, judged by its own ranks alone; kind "" while one of them runs."""
    if life.ended is None:
        return "", ""
    bad = [rank for rank in life.ranks if rank.state != "finished"]
    if not bad:
        return LEFT, "all its ranks finished while other nodes went on"
    first = min(bad, key=lambda rank: math.inf if rank.ended is None else rank.ended)
    text = f"rank {first.rank}: {end_words(first.state, first.cause)}"
    if first.state == INTERRUPTED:
        return LEFT, text
    if first.state == "preempted" or (first.state in ("killed", "failed") and _has(first.cause, ASKED)):
        return PREEMPTED, text
    return FAILED if first.state == "failed" else DIED, text


def _has(cause: str, signs: tuple[str, ...]) -> bool:
    return any(sign in cause for sign in signs)


def _when(life: NodeLife) -> float:
    """Return when the first of its ranks ended before its time; for one that vanished, when it was last heard of."""
    bad = (rank.ended or life.heard for rank in life.ranks if rank.state not in ("finished", "running"))
    return min((moment for moment in bad if moment), default=math.inf)


def _follows(life: NodeLife, cause: NodeLife, ends: Mapping[str, tuple[str, str]]) -> bool:
    """Return whether the end of a node is a consequence of that of another, which came first."""
    (kind, text), first = ends[life.node], ends[cause.node][0]
    after = _when(life) - _when(cause)
    if life is cause or after > FOLLOWS:
        return False
    if kind == FAILED:
        return True
    is_own = kind == DIED and not _has(text, ENDED_BY_OTHERS)  # nothing elsewhere fills its memory or cuts it off
    return not is_own and (kind != first or after > TOGETHER + life.spread_seconds + cause.spread_seconds)


def _outlives(other: NodeLife, life: NodeLife) -> bool:
    """Return whether another node trained on after this one: by their steps, or else by the clock."""
    if other is life or life.ended is None:
        return False
    if other.step is not None and life.step is not None:
        return other.step >= life.step + MORE_STEPS
    spread = other.spread_seconds + life.spread_seconds
    return other.ended is None or other.ended - life.ended > LATE_SECONDS + spread


def fate_lines(fates: Sequence[NodeFate]) -> list[dict[str, Any]]:
    """Return what there is to tell, by attempt: one line for nodes that share a fate, and who they are."""
    lines = []
    for attempt in sorted({fate.attempt for fate in fates}):
        own = [fate for fate in fates if fate.attempt == attempt]
        told = [(fate.arrival, fate.arrival_text, fate) for fate in own]
        told += [(fate.departure, fate.departure_text, fate) for fate in own]
        for kind in KINDS:
            some = [(text, fate) for one, text, fate in told if one == kind]
            parts = [some] if len(some) > MOST_NAMED else [[one] for one in some]
            lines += [{"attempt": attempt, "kind": kind, **_line(part, len(own))} for part in parts if part]
    return lines


def _line(some: Sequence[tuple[str, NodeFate]], total: int) -> dict[str, Any]:
    """Return who shares a fate, in words, and what is known about it."""
    hosts = [fate.host for _, fate in some]
    if len(hosts) == total > MOST_NAMED:
        who = f"all {format_items(total, 'node')}"
    elif len(hosts) > MOST_NAMED:
        who = f"{', '.join(hosts[: MOST_NAMED - 1])} and {format_items(len(hosts) - MOST_NAMED + 1, 'other node')}"
    else:
        who = ", ".join(hosts)
    texts = {text for text, _ in some}
    text = some[0][0] if len(texts) == 1 else f"{hosts[0]}: {some[0][0]}"
    return {"who": who, "nodes": [fate.node for _, fate in some], "text": text}


def fate_sentence(fates: Sequence[NodeFate], attempt: int) -> str:
    """Return in one sentence what happened to the nodes of an attempt; "" if nothing did."""
    told = [line for line in fate_lines(fates) if line["attempt"] == attempt]
    parts = [f"{line['who']} {_verb(line)}{line['kind']}" for line in told]
    return "; ".join(parts[:MOST_NAMED]) + (f"; {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else "")


def _verb(line: Mapping[str, Any]) -> str:
    if line["kind"] != PREEMPTED:
        return ""
    return "was " if len(line["nodes"]) == 1 else "were "
