"""What states, steps and phases of the ranks say about a hang."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from stepscope.analysis.hang.spelling import verb, who
from stepscope.analysis.hang.suspicion import DEAD_RANK, NEVER_ARRIVED, STEPS, UNKNOWN, Suspicion
from stepscope.core.numbers import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.analysis.hang.evidence import HangEvidence, RankEvidence

DEAD = ("failed", "killed", "oom-killed", "preempted", "lost", "interrupted")
"""States of ranks that ended before their time."""
STUCK = ("stalled", "hung")


def stuck(ranks: Iterable[RankEvidence]) -> list[RankEvidence]:
    """Return the ranks that run and stand still."""
    return [rank for rank in ranks if rank.state == "running" and rank.stall in STUCK]


def dead(ranks: Iterable[RankEvidence]) -> list[RankEvidence]:
    """Return the ranks that ended before their time."""
    return [rank for rank in ranks if rank.state in DEAD]


def by_steps(evidence: HangEvidence) -> Suspicion | None:
    """Return what states and steps say; None if nothing stands still."""
    still = stuck(evidence.ranks)
    if not still:
        return None
    waiting = gone_numbers(still)
    if all(rank.step is None and rank.silent_seconds is None for rank in evidence.ranks):  # dumps of another job
        return None
    sentences = [_standing(still), *_behind(still)]
    kind, ranks, text, confidence = _missing(evidence)
    if ranks:
        return Suspicion(STEPS, kind, ranks, waiting, text, [text, *sentences], confidence)
    late = behind(still)
    if late and len(late) < len(still):
        rest = tuple(rank for rank in waiting if rank not in late)
        return Suspicion(STEPS, NEVER_ARRIVED, late, rest, sentences[1], sentences, 0.4)
    return Suspicion(STEPS, UNKNOWN, (), waiting, sentences[0], sentences, 0.2)


def _missing(evidence: HangEvidence) -> tuple[str, tuple[int, ...], str, float]:
    """Return kind, ranks, text and confidence for ranks that are not there any more, or never were."""
    ends = dead(evidence.ranks)
    if ends:
        gone, cause = gone_numbers(ends), ends[0].cause
        text = f"{who(gone)} {verb(gone, 'has', 'have')} ended{f' ({cause})' if cause else ''}"
        return DEAD_RANK, gone, text, 0.8
    over = gone_numbers([rank for rank in evidence.ranks if rank.state == "finished"])
    if over:
        return NEVER_ARRIVED, over, f"{who(over)} {verb(over, 'has', 'have')} finished while others still train", 0.7
    known = {rank.rank for rank in evidence.ranks}
    absent = tuple(rank for rank in range(evidence.world_size or 0) if rank not in known)
    if absent and len(absent) < len(known):
        return NEVER_ARRIVED, absent, f"{who(absent)} {verb(absent, 'has', 'have')} never reported", 0.4
    return UNKNOWN, (), "", 0.0


def gone_numbers(ranks: Sequence[RankEvidence]) -> tuple[int, ...]:
    """Return the numbers of ranks in order."""
    return tuple(sorted(rank.rank for rank in ranks))


def behind(ranks: Sequence[RankEvidence]) -> tuple[int, ...]:
    """Return the ranks whose last step is before that of the most."""
    counted = Counter(rank.step for rank in ranks if rank.step is not None)
    if not counted:
        return ()
    usual = max(counted, key=lambda step: (counted[step], step))
    return tuple(rank.rank for rank in ranks if rank.step is not None and rank.step < usual)


def _standing(ranks: Sequence[RankEvidence]) -> str:
    quiet = [rank.silent_seconds for rank in ranks if rank.silent_seconds is not None]
    usual = [rank.usual_seconds for rank in ranks if rank.usual_seconds is not None]
    steps = sorted({rank.step for rank in ranks if rank.step is not None})
    text = f"no step ended on {who(rank.rank for rank in ranks)}"
    text += f" for {format_duration(max(quiet))}" if quiet else ""
    text += f"; a usual step takes {format_duration(sorted(usual)[len(usual) // 2])}" if usual else ""
    at = f"{steps[0]}" if len(set(steps)) == 1 else f"between {steps[0]} and {steps[-1]}" if steps else ""
    return f"{text}; the last step is {at}" if at else text


def _behind(ranks: Sequence[RankEvidence]) -> list[str]:
    late = behind(ranks)
    if not late:
        return []
    own = sorted({rank.step for rank in ranks if rank.rank in late and rank.step is not None})
    rest = [rank.step for rank in ranks if rank.rank not in late and rank.step is not None]
    return [f"{who(late)} {verb(late, 'is', 'are')} at step {own[0]}, the others at {max(rest)}"]
