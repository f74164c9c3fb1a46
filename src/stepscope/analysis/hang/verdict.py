"""One verdict about a hang, merged from steps, stacks, the flight recorder and RAS; each of them may be missing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.analysis.hang.collectives import by_recorder
from stepscope.analysis.hang.outliers import by_stacks
from stepscope.analysis.hang.ras import by_ras
from stepscope.analysis.hang.spelling import verb, who
from stepscope.analysis.hang.stacks import DEBUGGER, DOES, LONG, OUTSIDE, STOPPED, Activity, activity_of
from stepscope.analysis.hang.steps import by_steps, dead, gone_numbers, stuck
from stepscope.analysis.hang.suspicion import (
    COLLECTIVE_STUCK,
    DEAD_RANK,
    FLIGHT_RECORDER,
    KINDS,
    NEVER_ARRIVED,
    NONE,
    OUTSIDE_TORCH,
    RAS,
    STACKS,
    STEPS,
    UNKNOWN,
    Suspicion,
)
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from stepscope.analysis.hang.evidence import HangEvidence, RankEvidence

__all__ = ["DOES", "KINDS", "HangVerdict", "judge"]

AGREES, DIFFERS = 0.15, 0.2
"""What another source that names the same ranks adds to the confidence, and one that names others takes away."""
LEAST, MOST = 0.05, 0.99
HALTED = (STOPPED, DEBUGGER)
LONGEST_PAUSE = 300.0
"""Seconds for which a checkpoint, an evaluation or a compilation is taken for healthy, though other ranks wait."""


@dataclass(frozen=True)
class HangVerdict:
    """Whether a job hangs, why, and which ranks are the cause."""

    kind: str
    ranks: tuple[int, ...] = ()
    """The cause; empty if no rank is, or it is unknown which."""
    waiting: tuple[int, ...] = ()
    """The ranks that wait for them."""
    text: str = ""
    """One sentence."""
    evidence: dict[str, list[str]] = field(default_factory=dict)
    """Sentences by source: steps, stacks, flight_recorder, ras."""
    remedy: str = ""
    confidence: float = 0.0
    """From 0 to 1."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data for JSON."""
        return {**asdict(self), "ranks": list(self.ranks), "waiting": list(self.waiting)}


def judge(evidence: HangEvidence) -> HangVerdict:
    """Return one verdict; `none` for a job that moves, or pauses for a good reason."""
    found = [one for one in _opinions(evidence) if one is not None]
    shown = {one.source: one.sentences for one in found if one.sentences}
    over = bool(found) and found[0].kind == DEAD_RANK
    calm = "" if over else _calm(evidence)
    if calm:
        return HangVerdict(NONE, (), (), calm, shown, "", 0.8)
    named = [one for one in found if one.kind != UNKNOWN]
    if not named:
        text = found[0].text if found else "nothing is known of its ranks"
        waiting = found[0].waiting if found else ()
        return HangVerdict(UNKNOWN, (), waiting, _full(text), shown, remedy("hang"), 0.1)
    first = _explained(_first(named), evidence)
    return HangVerdict(
        first.kind,
        first.ranks,
        tuple(rank for rank in first.waiting if rank not in first.ranks),
        _full(first.text),
        shown,
        _remedy(first, evidence),
        _confidence(first, named),
    )


def _confidence(first: Suspicion, named: list[Suspicion]) -> float:
    """Return the confidence in one opinion among others: more if they name the same ranks, less if they name others."""
    found = first.confidence
    for other in named:
        if other.source == first.source or not other.ranks:
            continue
        if set(other.ranks) == set(first.ranks):
            found += AGREES
        elif first.ranks and not set(other.ranks) & set(first.ranks):
            found -= DIFFERS
    return round(min(MOST, max(LEAST, found)), 2)


def _remedy(first: Suspicion, evidence: HangEvidence) -> str:
    activity = _activity(first, evidence)
    return remedy("hang", activity.kind if activity and first.kind == OUTSIDE_TORCH else first.kind)


def _opinions(evidence: HangEvidence) -> list[Suspicion | None]:
    return [by_steps(evidence), by_stacks(evidence), by_recorder(evidence), by_ras(evidence)]


def _first(named: list[Suspicion]) -> Suspicion:
    """Return the opinion that the others are compared with."""
    by_source = {one.source: one for one in named}
    steps = by_source.get(STEPS)
    if steps is not None and steps.kind == DEAD_RANK:
        return steps
    stacks, recorder = by_source.get(STACKS), by_source.get(FLIGHT_RECORDER)
    if recorder is not None and stacks is not None and recorder.kind == COLLECTIVE_STUCK and stacks.confidence > 0.8:
        return stacks  # a process that is stopped has entered everything, and still holds up the others
    order = (FLIGHT_RECORDER, STACKS, RAS, STEPS)
    return next(by_source[source] for source in order if source in by_source)


def _explained(first: Suspicion, evidence: HangEvidence) -> Suspicion:
    """Return an opinion with what the stacks of its ranks add: a rank that never arrived may stand in a disk."""
    activity = _activity(first, evidence)
    named = evidence.of_rank(first.ranks[0]) if first.ranks else None
    kind, text = first.kind, first.text
    lives = named is not None and named.state == "running"
    if kind == DEAD_RANK and lives and first.source == FLIGHT_RECORDER:  # it left no record, but it lives
        kind, text = NEVER_ARRIVED, "; ".join(part for part in text.split("; ") if "left no record" not in part)
    if kind == NEVER_ARRIVED and activity is not None:
        kind = OUTSIDE_TORCH if activity.kind in OUTSIDE else kind
        does = activity.said()
        if does not in text:
            text += f": {'it' if len(first.ranks) == 1 else who(first.ranks[:1])} {does}"
    return Suspicion(first.source, kind, first.ranks, first.waiting, text, first.sentences, first.confidence)


def _activity(first: Suspicion, evidence: HangEvidence) -> Activity | None:
    """Return what the first of the ranks that are the cause does, if all of them do something of the same kind."""
    found = [activity_of(rank) for rank in map(evidence.of_rank, first.ranks) if rank is not None]
    known = [activity for activity in found if activity is not None]
    same = known and len(known) == len(first.ranks) and len({activity.kind for activity in known}) == 1
    return known[0] if same else None


def _calm(evidence: HangEvidence) -> str:
    """Return why this is no hang, as a sentence; empty if it may be one."""
    if not evidence.ranks:
        return ""
    running = [rank for rank in evidence.ranks if rank.state == "running"]
    gone = gone_numbers(dead(evidence.ranks))
    if not running:
        return "No rank runs any more."
    if not stuck(running):
        return f"The other ranks move; {who(gone)} {verb(gone, 'has', 'have')} ended." if gone else "All ranks move."
    return "" if gone else _pause(running)


def _pause(running: list[RankEvidence]) -> str:
    """Return which healthy pause explains that ranks stand still; empty if none does."""
    pausing = [rank for rank in running if _pauses(rank)]
    rest = [rank for rank in stuck(running) if rank not in pausing]
    activities = [activity_of(rank) for rank in rest]
    if not pausing or any(activity is not None and activity.kind in OUTSIDE for activity in activities):
        return ""
    activity = activity_of(pausing[0])
    what = pausing[0].phase or (activity.kind if activity else "")
    numbers, others = gone_numbers(pausing), gone_numbers(rest)
    waits = f"; {who(others)} {verb(others, 'waits', 'wait')} for it" if others else ""
    return f"A long pause: {who(numbers)} {verb(numbers, 'is', 'are')} in a phase of the kind {what}{waits}."


def _pauses(rank: RankEvidence) -> bool:
    """Return whether a rank does something that may take minutes, and still moves."""
    activity = activity_of(rank)
    if activity is not None and (activity.kind in HALTED or (activity.kind in OUTSIDE and rank.stall)):
        return False
    is_long = bool(rank.phase) or (activity is not None and activity.kind in LONG)
    return is_long and rank.stall != "hung" and (rank.silent_seconds or 0.0) < LONGEST_PAUSE


def _full(text: str) -> str:
    """Return a text as a sentence: with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
