"""What the stacks of all ranks say about a hang: who waits in a collective, and who does something else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analysis.hang.spelling import verb, who
from stepscope.analysis.hang.stacks import (
    BACKWARD,
    COLLECTIVE,
    DEBUGGER,
    OUTSIDE,
    STOPPED,
    Activity,
    groups,
    said,
)
from stepscope.analysis.hang.steps import STUCK, stuck
from stepscope.analysis.hang.suspicion import (
    COLLECTIVE_STUCK,
    DESYNCHRONISED,
    NEVER_ARRIVED,
    OUTSIDE_TORCH,
    STACKS,
    UNKNOWN,
    Suspicion,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.analysis.hang.evidence import HangEvidence, RankEvidence

SURE = (STOPPED, DEBUGGER)
"""Activities of a process that can do nothing at all, not even in another thread."""


def by_stacks(evidence: HangEvidence) -> Suspicion | None:
    """Return what the stacks say; None without any, or if nothing stands still."""
    running = [rank for rank in evidence.ranks if rank.state == "running"]
    grouped = groups(running)
    if not grouped or not stuck(running):
        return None
    sentences = said(grouped)
    waiting = {activity: ranks for activity, ranks in grouped.items() if activity.kind in (COLLECTIVE, BACKWARD)}
    others = {activity: ranks for activity, ranks in grouped.items() if activity not in waiting}
    inside = _members(waiting)
    if others and inside:
        return _outlier(others, inside, sentences)
    if others:
        return _alone(running, others, sentences)
    return _all_inside(waiting, sentences)


def _outlier(others: Mapping[Activity, tuple[int, ...]], inside: tuple[int, ...], sentences: list[str]) -> Suspicion:
    """Return the ranks outside of collectives, which the ranks inside wait for."""
    sure = {activity: ranks for activity, ranks in others.items() if activity.kind in SURE}
    chosen = sure or others
    ranks = _members(chosen)
    activity = next(iter(chosen))
    kind = OUTSIDE_TORCH if all(one.kind in OUTSIDE for one in chosen) else NEVER_ARRIVED
    text = f"{who(inside)} {verb(inside, 'waits', 'wait')} in a collective for {who(ranks)}"
    text += f", which {activity.said()}" if len(ranks) == 1 else ""
    confidence = 0.9 if sure else 0.7 if len(ranks) <= max(1, len(inside)) else 0.5
    rest = tuple(rank for rank in _members(others) if rank not in ranks)
    return Suspicion(STACKS, kind, ranks, (*inside, *rest), text, sentences, confidence)


def _alone(running: list[RankEvidence], others: Mapping[Activity, tuple[int, ...]], sentences: list[str]) -> Suspicion:
    """Judge ranks of which none is in a collective: each is its own cause."""
    still = {rank.rank for rank in running if rank.stall in STUCK}
    outside = {activity: ranks for activity, ranks in others.items() if activity.kind in OUTSIDE and still & set(ranks)}
    chosen = outside or {activity: ranks for activity, ranks in others.items() if still & set(ranks)}
    if not chosen:
        return Suspicion(STACKS, UNKNOWN, (), (), sentences[0], sentences, 0.2)
    ranks = tuple(rank for rank in _members(chosen) if rank in still)
    waiting = tuple(rank for rank in sorted(still) if rank not in ranks)
    if not outside and all(rank.stall != "hung" for rank in running if rank.rank in ranks):
        return Suspicion(STACKS, UNKNOWN, (), waiting, sentences[0], sentences, 0.2)
    activity = next(iter(chosen))
    text = f"{who(ranks)} {verb(ranks, 'stands', 'stand')} still: {who(ranks[:1])} {activity.said()}"
    return Suspicion(STACKS, OUTSIDE_TORCH if outside else NEVER_ARRIVED, ranks, waiting, text, sentences, 0.6)


def _all_inside(waiting: Mapping[Activity, tuple[int, ...]], sentences: list[str]) -> Suspicion:
    """Judge ranks that all wait in collectives: in the same one, or in different ones."""
    ranks = _members(waiting)
    exact = {activity: members for activity, members in waiting.items() if activity.kind == COLLECTIVE}
    if len(exact) < 2:
        activity = next(iter(waiting))
        text = (
            f"all {len(ranks)} ranks are in {activity.what or 'a collective'} at {activity.place}, and none leaves it"
        )
        enough = len(ranks) > 1
        return Suspicion(STACKS, COLLECTIVE_STUCK if enough else UNKNOWN, (), ranks, text, sentences, 0.4)
    sizes = sorted(len(members) for members in exact.values())
    fewest = [members for members in exact.values() if len(members) < sizes[-1]]
    cause = tuple(sorted(rank for members in fewest for rank in members)) or ranks
    text = f"the ranks wait in different collectives: {'; '.join(sentences[:3])}"
    return Suspicion(STACKS, DESYNCHRONISED, cause, ranks, text, sentences, 0.5)


def _members(grouped: Mapping[Activity, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(rank for ranks in grouped.values() for rank in ranks))
