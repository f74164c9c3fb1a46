"""The evidence of a hang: from a recorded run, while it hangs or afterwards, or from flight-recorder dumps."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.analysis.hang.evidence import FlightRecord, HangEvidence, RankEvidence, RasReport
from stepscope.analysis.hang.ras_report import read_report
from stepscope.analysis.hang.standing import standing_verdict
from stepscope.core.events import is_users
from stepscope.importers.flight_recorder import read_dumps, world_of
from stepscope.sources.attempts import nodes_of
from stepscope.sources.clocks import node_seconds, true_events
from stepscope.sources.rank_blame import stands
from stepscope.sources.torch_dumps import TorchDumps, torch_dumps
from stepscope.store.states import ABNORMAL, newest_attempt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from stepscope.analysis.hang.verdict import HangVerdict
    from stepscope.store.reader import Past
    from stepscope.store.states import RankState

STALLED, HUNG, RECOVERED, STACKS = "stalled", "hung", "recovered", "stacks"
FLIGHT, RAS = "flight_recorder", "nccl_ras"
STANDING = (STALLED, HUNG)
STALE = 120.0
"""Seconds before the newest stall from which stacks of other ranks are evidence of the same hang."""
MOST_THREADS = 256
"""Threads of one rank that are read."""


def hang_evidence(past: Past, now: float | None = None) -> HangEvidence:
    """Return what the last attempt of a run recorded about a hang; `now` in seconds since 1970, None for the present.

    A rank whose end came after the ranks stood still counts as running: it did not cause the hang. All times are by
    the clock of one node.
    """
    nodes = nodes_of(past)
    last = newest_attempt(nodes)
    clocks = node_seconds(past)
    states = {
        rank: (node.node, _by_one_clock(state, clocks.get(node.node, 0.0)))
        for node in nodes
        if node.attempt == last
        for rank, state in node.ranks.items()
    }
    by_rank, reports = _events(past, last)
    since = min(_stood(by_rank).values(), default=None)
    seen = {rank: _seen(by_rank[rank]) for rank in states}
    dumps = _dumps(past, last, seen, since)
    if since is None and _is_bad(states):
        since = dumps.since  # torch ends a job whose collective took too long, after it has dumped
    elif since is None:
        dumps = TorchDumps()
    for rank, record in dumps.records.items():
        seen[rank] = seen[rank]._replace(record=record, stall=seen[rank].stall or HUNG)
    moments = since, _moment([state for _, state in states.values()], time.time() if now is None else now)
    ranks = [_rank(rank, node, state, seen[rank], moments) for rank, (node, state) in sorted(states.items())]
    return HangEvidence(
        tuple(ranks),
        _world_size(past),
        _ras(reports) if since is not None else None,
        cut=dumps.cut,
        problems=dumps.problems,
    )


def _world_size(past: Past) -> int | None:
    world = past.meta.get("world_size")
    return world if isinstance(world, int) and 0 < world < 2**31 else None


def _by_one_clock(state: RankState, ahead: float) -> RankState:
    """Return a rank's state with its end by the clock that all nodes share; its own is ahead by so many seconds."""
    return state if state.ended is None else replace(state, ended=state.ended - round(ahead * 1e6))


def _events(past: Past, attempt: int) -> tuple[dict[int, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Return our own events of an attempt by rank, and the reports of RAS."""
    events = [event for event in true_events(past) if not is_users(event) and event.get("attempt", attempt) == attempt]
    by_rank: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if isinstance(event.get("rank"), int):
            by_rank[event["rank"]].append(event)
    return by_rank, [event for event in events if event["kind"] == RAS]


def _dumps(past: Past, attempt: int, seen: Mapping[int, _Seen], since: float | None) -> TorchDumps:
    """Return what torch itself dumped of the ranks that did not hand their record to the watcher."""
    silent = [rank for rank, one in seen.items() if one.record is None]
    return torch_dumps(past, attempt, silent, None if since is None else since - STALE)


def _is_bad(states: Mapping[int, tuple[str, RankState]]) -> bool:
    """Return whether a rank ended badly."""
    return any(state.state in ABNORMAL for _, state in states.values())


def recorded_verdict(past: Past) -> HangVerdict | None:
    """Return what the watchers found out while the last attempt of a run hung; None if it does not hang, or went on."""
    nodes = nodes_of(past)
    last = newest_attempt(nodes)
    states = [state for node in nodes if node.attempt == last for state in node.ranks.values()]
    if not stands(states):
        return None
    return standing_verdict(event for event in true_events(past) if event.get("attempt", last) == last)


def _moment(states: Sequence[RankState], now: float) -> float:
    """Return the end of a run that is over, otherwise `now`."""
    if any(state.state == "running" for state in states):
        return now
    return max((state.ended / 1e6 for state in states if state.ended is not None), default=now)


def dump_evidence(paths: Sequence[Path]) -> tuple[HangEvidence, list[str]]:
    """Return the evidence in flight-recorder dumps, and what of them could not be used, one sentence each.

    A dump is written when a collective takes too long, so its rank counts as one that hangs.
    """
    dumps = read_dumps(paths)
    records = {rank: FlightRecord.of(facts) for rank, facts in sorted(dumps.records.items())}
    world = max((world_of(facts) for facts in dumps.records.values()), default=0)
    ranks = tuple(RankEvidence(rank, stall=HUNG, record=record) for rank, record in records.items())
    return HangEvidence(ranks, world or None, cut=frozenset(dumps.cut)), dumps.problems


def _stood(by_rank: Mapping[int, Iterable[Mapping[str, Any]]]) -> dict[int, float]:
    """Return since when each rank stands still that did not move again, in seconds since 1970."""
    found: dict[int, float] = {}
    for rank, events in by_rank.items():
        for event in events:
            if event["kind"] in STANDING:
                found.setdefault(rank, float(event["time"]))
            elif event["kind"] == RECOVERED:
                found.pop(rank, None)
    return found


class _Seen(NamedTuple):
    """What the events of one rank show since it last moved."""

    stall: str = ""
    phase: str = ""
    quiet_since: float | None = None
    stacks: Mapping[str, Any] = MappingProxyType({})
    """The last event with stacks."""
    record: FlightRecord | None = None


def _seen(events: Iterable[Mapping[str, Any]]) -> _Seen:
    found = _Seen()
    for event in events:
        kind = event["kind"]
        if kind == RECOVERED:
            found = _Seen()
        elif kind in STANDING:
            since, phase = event.get("since"), event.get("phase")
            known = float(since) if isinstance(since, (int, float)) and math.isfinite(since) else None
            found = found._replace(stall=kind, quiet_since=known, phase=phase if isinstance(phase, str) else "")
        elif kind == FLIGHT:
            found = found._replace(record=_record(event) or found.record)
        if kind in (*STANDING, STACKS) and (event.get("stacks") or event.get("threads")):
            found = found._replace(stacks=event)
        if kind == STACKS and isinstance(event.get("phase"), str):  # in a long phase no rank is stalled
            found = found._replace(phase=event["phase"])
    return found


def _rank(rank: int, node: str, state: RankState, seen: _Seen, moments: tuple[float | None, float]) -> RankEvidence:
    """Return what is known of one rank; `moments`: when the first rank began to stand, and now."""
    since, now = moments
    usual = state.step_seconds / state.steps if state.step_seconds and state.steps else None
    plain = RankEvidence(rank, node, state.state, state.cause, state.step, state.steps)
    ended = None if state.ended is None else state.ended / 1e6
    plain = replace(plain, usual_seconds=state.usual_seconds or usual, ended=ended)
    if since is None:
        return plain
    is_fresh = float(seen.stacks.get("time", 0.0)) >= since - STALE
    shown = "running" if _outlived(state, seen.stall, since) else state.state
    return replace(
        plain,
        state=shown,
        cause="" if shown == "running" else state.cause,
        phase=seen.phase,
        silent_seconds=None if seen.quiet_since is None else max(0.0, now - seen.quiet_since),
        stacks=_threads(seen.stacks.get("stacks")) if is_fresh else (),
        waits=_threads(seen.stacks.get("threads")) if is_fresh else (),
        stall=seen.stall,
        no_stacks=str(seen.stacks.get("no_stacks") or "")[:500] if is_fresh else "",
        record=seen.record,
    )


def _outlived(state: RankState, stall: str, since: float) -> bool:
    """Return whether a rank that has ended was still there when others stood still, and so did not cause it."""
    ended_later = state.ended is not None and state.ended / 1e6 > since and state.state != "finished"
    return ended_later and (bool(stall) or state.state != "failed")


def _threads(value: Any) -> tuple[Mapping[str, Any], ...]:
    rows = [row for row in value[:MOST_THREADS] if isinstance(row, dict)] if isinstance(value, list) else []
    for row in rows:
        frames = row.get("frames")
        row["frames"] = [one for one in frames if isinstance(one, dict)] if isinstance(frames, list) else []
    return tuple(rows)


def _record(event: Mapping[str, Any]) -> FlightRecord | None:
    text = event.get("record")
    try:
        return FlightRecord.of_json(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):  # the watcher has cut it; the other sources remain
        return None


def _ras(events: Sequence[Mapping[str, Any]]) -> RasReport | None:
    """Return the last report of RAS, with the one before it."""
    found = [report for event in events[-2:] if (report := read_report(event.get("report"))) is not None]
    if not found:
        return None
    return replace(found[-1], before=found[0].communicators) if len(found) > 1 else found[-1]
