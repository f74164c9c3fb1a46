"""Judge which error among many ranks came first and is not a consequence of another."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.analysis.first_error.evidence import ErrorEvidence, FirstError, FoldedError, Skew
from stepscope.analysis.first_error.known import PRIMARY, SECONDARY, WEAK
from stepscope.analysis.first_error.report import HANDLED
from stepscope.analysis.first_error.suspect import Suspect, suspects_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SAME_CAUSE = 300.0
"""Seconds within which the same error of several ranks is one cause."""
SAME_END = 2.0
"""Seconds within which ends without a text are one cause."""
LATE = 10.0
"""Seconds by which output may be late: a buffer that is written at the end."""
MOST_OTHERS = 20
FEW_SILENT, FEW_SHARE = 8, 8
"""So many ranks, or an eighth of all, may be the cause if all others waited for them."""
DEATHS = ("killed", "lost", "exit")
TAKEN, LEFT = "preempted", "left"
"""Kinds of ends that are nobody's error, though the others may fail without that rank."""
SPOKEN = ("timeout", "peer", "group")
"""Kinds of errors that say that another rank did not answer."""
STRENGTH = {"thread": 1, "collective": 1, HANDLED: 2}
"""Kinds of errors that are rather a consequence than others that may be one."""
LAUNCHER = re.compile(r"^\s*rank\s+: (\d+) \(local_rank")
AFTER = re.compile(r", after rank \d+ [^,;]*")
"""What an end says about another rank that ended earlier; the first error did not follow from that."""
BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier")


@dataclass(frozen=True)
class _Choice:
    """The suspects that share the first error, with the confidence and its reason."""

    suspects: Sequence[Suspect]
    confidence: float
    why: str
    kind: str = ""


def first_error(evidence: ErrorEvidence) -> FirstError | None:
    """Return the error that the others follow from; None if no rank ended with one."""
    suspects = suspects_of(evidence)
    strong, weak, second = ([one for one in suspects if one.role == role] for role in (PRIMARY, WEAK, SECONDARY))
    if sum(one.kind == HANDLED for one in weak) > max(
        1, len(second) // FEW_SHARE
    ):  # all ranks catch it: it is ordinary
        second += [one for one in weak if one.kind == HANDLED]
        weak = [one for one in weak if one.kind != HANDLED]
    choice = _of_taken(evidence, suspects, [*strong, *weak])
    if choice is not None:
        return _answer(evidence, choice, suspects)
    if strong:
        choice = _of_strong(evidence, strong, weak, second)
    elif weak:
        choice = _of_weak(weak, second)
    if choice is not None:
        return _answer(evidence, choice, suspects)
    return _of_waiting(evidence, suspects, second) if second else None


def _of_taken(evidence: ErrorEvidence, suspects: Sequence[Suspect], others: Sequence[Suspect]) -> _Choice | None:
    """Return the ranks that their scheduler took away while others needed them; None if that explains nothing.

    `others` are the suspects that may be the cause themselves. A job that is taken away as a whole has no first error.
    """
    states = {end.rank: end.state for end in evidence.ends}
    taken = [one for one in suspects if one.is_end and states.get(one.rank) == TAKEN]
    first = min(taken, key=_when, default=None)
    if first is None or any(not first.is_before(one) for one in others):
        return None
    after = [one for one in suspects if one not in taken and (one in others or one.kind in SPOKEN)]
    own = _sharing(first, taken, SAME_END)
    why = "the scheduler took it away before the first error of another rank"
    return _Choice(own, 0.85, why, TAKEN) if after else None


def _of_strong(
    evidence: ErrorEvidence, strong: Sequence[Suspect], weak: Sequence[Suspect], second: Sequence[Suspect]
) -> _Choice | None:
    """Return the first error among those that explain themselves; None if a hang came before all of them."""
    leader = min(strong, key=_when)
    earlier = [one for one in weak if one.kind in DEATHS and one.is_before(leader)]
    if earlier:
        first = min(earlier, key=_when)
        why = f"it ended {_apart(first, leader)} before the first error of another rank"
        return _Choice(_sharing(first, earlier, SAME_END), 0.85, why)
    before = [one for one in second if one.when + LATE < leader.when and one.is_before(leader)]
    lost = [one for one in weak if one.kind == "lost"] if before else []
    if lost:
        return _Choice(_sharing(lost[0], lost, SAME_CAUSE), 0.6, "other ranks lost it before any other error")
    if any(one.kind == "timeout" for one in before):
        return None
    return _of_tied(evidence, strong, leader, 0.6 if before else 0.95, _reason(leader, strong, second))


def _of_tied(
    evidence: ErrorEvidence, strong: Sequence[Suspect], leader: Suspect, confidence: float, why: str
) -> _Choice:
    """Return the earliest error, or the most telling one of those that are as early as far as the clocks show."""
    tied = [one for one in strong if one is leader or not leader.is_before(one)]
    groups = _groups(tied)
    if len(groups) == 1:
        return _Choice(_sharing(leader, strong, SAME_CAUSE), confidence, why)
    best = _most_telling(groups, evidence, len(strong))
    others = sorted({one.rank for one in tied} - {one.rank for one in best})
    near = f"the clocks of the nodes are too uncertain to order it and the errors of {ranks_text(others)}"
    return _Choice(_sharing(best[0], strong, SAME_CAUSE), 0.55, f"{near}; this one explains itself best")


def _most_telling(groups: Sequence[Sequence[Suspect]], evidence: ErrorEvidence, count: int) -> Sequence[Suspect]:
    """Return the group that most likely began it, of several whose times do not decide."""
    named = launcher_choice(evidence)

    def score(group: Iterable[Suspect]) -> tuple[bool, bool, bool, float]:
        members = list(group)
        is_crowd = len(members) > 4 and len(members) > count / 2
        is_generic = members[0].kind == "exception"
        return is_crowd, is_generic, named not in {one.rank for one in members}, min(map(_when, members))

    return sorted(min(groups, key=score), key=_when)


def _reason(leader: Suspect, strong: Sequence[Suspect], second: Sequence[Suspect]) -> str:
    later = min((one for one in strong if one.signature != leader.signature), key=_when, default=None)
    follower = min(second, key=_when, default=None)
    if later is not None and leader.time is not None:
        return f"it came {_apart(leader, later)} before the next error that is no consequence, on rank {later.rank}"
    return "no other rank has an error of its own" if follower else "no other rank has an error"


def _of_weak(weak: Sequence[Suspect], second: Sequence[Suspect]) -> _Choice | None:
    """Return the first end without a text of its own; None if others waited in vain before any of them."""
    first = min(weak, key=lambda one: (STRENGTH.get(one.kind, 0), one.when))
    before = [one for one in second if one.is_before(first) and one.when + LATE < first.when]
    if before and first.time is not None:
        return None
    span = SAME_END if first.is_end else SAME_CAUSE
    sharing = _sharing(first, weak, span)
    if first.kind == "lost":
        return _Choice(sharing, 0.6, "no other rank has an error of its own, and this one was gone without a word")
    if first.is_end:
        confidence = 0.85 if len(sharing) <= max(FEW_SILENT, len(weak) // 2) else 0.5
        is_first = all(first.when <= one.when for one in second)
        why = "it ended first" if is_first else "no other rank has an error of its own"
        return _Choice(sharing, confidence, f"{why}, and the other errors are consequences")
    return _Choice(sharing, 0.5, "it is the first error that may be its own")


def _of_waiting(evidence: ErrorEvidence, suspects: Sequence[Suspect], second: Sequence[Suspect]) -> FirstError:
    """Return what is known if every error is a consequence: a person stopped it, or a rank never came."""
    spoken = [one for one in second if one.kind in SPOKEN]
    if not spoken:
        chosen = [one for one in second if one.kind == "stopped"] or list(second)
        return _answer(evidence, _Choice(chosen, 0.9, "no rank has an error of its own", "stopped"), suspects)
    kind = "hang" if any(one.kind == "timeout" for one in spoken) else "peer"
    loud = sorted(one.rank for one in spoken)
    named = _named_at_barrier(evidence)
    silent = sorted(named or _world(evidence) - set(loud))
    is_crowd = len(silent) > max(FEW_SILENT, len(loud) // FEW_SHARE) or len(silent) >= len(loud)
    if not silent or (is_crowd and not _have_left(evidence, silent)):
        why = "every error says that another rank did not answer; none of them is its own cause"
        return _answer(evidence, _Choice([min(spoken, key=_when)], 0.2, why, kind), suspects)
    return _answer(evidence, _of_silent(evidence, silent, loud, kind), suspects)


def _of_silent(evidence: ErrorEvidence, silent: Sequence[int], loud: Sequence[int], kind: str) -> _Choice:
    """Return the ranks that said nothing: they finished while the others went on, or did not answer."""
    if _have_left(evidence, silent):
        why = f"{ranks_text(silent)} finished, and {ranks_text(loud)} went on and got no answer"
        return _Choice(_guesses(evidence, silent, LEFT), 0.7, why, LEFT)
    why = f"{ranks_text(loud)} reported that a peer did not answer, and {ranks_text(silent)} did not"
    return _Choice(_guesses(evidence, silent, kind), 0.7 if _named_at_barrier(evidence) else 0.5, why, "hang")


def _have_left(evidence: ErrorEvidence, ranks: Iterable[int]) -> bool:
    return set(ranks) <= {end.rank for end in evidence.ends if end.state == "finished"}


def _guesses(evidence: ErrorEvidence, silent: Sequence[int], kind: str) -> list[Suspect]:
    """Return suspects for ranks that reported nothing."""
    end = "the others waited for it" if kind == "hang" else "the others lost it"
    text = f"reported no error {'while' if kind == 'hang' else 'before'} {end}"
    text = "finished while the others went on" if kind == LEFT else text
    tails = {rank: tuple(line.text[:500] for line in evidence.lines.get(rank, ())[-20:]) for rank in silent}
    return [
        Suspect(rank, _node(evidence, rank), None, 0.0, WEAK, "hang", text, "", lines=tails[rank], is_guess=True)
        for rank in silent
    ]


def _world(evidence: ErrorEvidence) -> set[int]:
    known = {end.rank for end in evidence.ends} | {rank for rank in evidence.lines if rank >= 0}
    return known | set(range(evidence.world_size or 0))


def _node(evidence: ErrorEvidence, rank: int) -> str:
    ends = (end.node for end in evidence.ends if end.rank == rank)
    return next(ends, "") or next((line.node for line in evidence.lines.get(rank, ())), "")


def _named_at_barrier(evidence: ErrorEvidence) -> set[int]:
    for lines in evidence.lines.values():
        for line in lines:
            found = BARRIER.search(line.text)
            if found:
                return {int(one) for one in re.findall(r"\d{1,6}", found[1])}
    return set()


def launcher_choice(evidence: ErrorEvidence) -> int | None:
    """Return the rank that torchrun names as the root cause; None if it named none."""
    for lines in evidence.lines.values():
        is_root = False
        for line in lines:
            is_root = is_root or "Root Cause (first observed failure)" in line.text
            found = LAUNCHER.match(line.text) if is_root else None
            if found:
                return int(found[1])
    return None


def _when(one: Suspect) -> float:
    return one.when


def _groups(suspects: Iterable[Suspect]) -> list[list[Suspect]]:
    found: dict[str, list[Suspect]] = defaultdict(list)
    for one in suspects:
        found[one.signature].append(one)
    return list(found.values())


def _sharing(first: Suspect, all_of: Sequence[Suspect], span: float) -> list[Suspect]:
    """Return the suspects with the same error as the first, itself first."""

    def near(one: Suspect) -> bool:
        if one.time is None or first.time is None:
            return one.time is first.time
        apart = one.spread + first.spread if one.node != first.node else 0.0
        return abs(one.time - first.time) <= span + apart

    same = [one for one in all_of if one.signature == first.signature and one is not first and near(one)]
    return [first, *sorted(same, key=_when)]


def _apart(first: Suspect, later: Suspect) -> str:
    return f"{later.when - first.when:.2f} s" if later.time is not None and first.time is not None else "some time"


def ranks_text(ranks: Sequence[int], world: int | None = None) -> str:
    """Return ranks in words: "rank 3", "ranks 3, 4 and 9", "all 512 ranks", "509 ranks"."""
    if world is not None and len(ranks) >= world > 1:
        return f"all {world} ranks"
    if len(ranks) > 6:
        return f"{len(ranks)} ranks"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _answer(evidence: ErrorEvidence, choice: _Choice, suspects: Sequence[Suspect]) -> FirstError:
    ranks = tuple(sorted(one.rank for one in choice.suspects))
    world = len(_world(evidence))
    shown = choice.suspects[0]
    if len(ranks) >= world > 1:
        shown = min(choice.suspects, key=lambda one: one.rank)
    chosen = set(ranks)
    is_known = choice.kind != "peer" and choice.confidence > 0.3
    where = f" on {shown.node}" if shown.node and len(ranks) == 1 else ""
    error = AFTER.sub("", shown.text) if shown.is_end else shown.text
    told = f"{ranks_text(ranks, world)}{where}{' ' if shown.is_guess else ': '}{error}"
    summary = told if is_known else f"no rank is known as the cause; the first to report is {told}"
    return FirstError(
        *(shown.rank, shown.node, shown.time, choice.kind or shown.kind, summary),
        ranks=ranks if is_known else (),
        error=error,
        lines=shown.lines,
        chain=shown.chain,
        others=_folded([one for one in suspects if one.rank not in chosen]),
        confidence=choice.confidence,
        why=choice.why,
        step=shown.step,
        local_time=None if shown.time is None else shown.time + evidence.skews.get(shown.node, Skew()).seconds,
    )


def _folded(suspects: Sequence[Suspect]) -> tuple[FoldedError, ...]:
    """Return the errors of the other ranks, the same ones in one line, the most frequent first."""
    groups = [sorted(group, key=_when) for group in _groups(suspects)]
    groups.sort(key=lambda group: (-len(group), group[0].when))
    return tuple(
        FoldedError(tuple(sorted(one.rank for one in group)), group[0].text, _why_folded(group[0]))
        for group in groups[:MOST_OTHERS]
    )


def _why_folded(one: Suspect) -> str:
    return one.means if one.role == SECONDARY else f"later: {one.means}"
