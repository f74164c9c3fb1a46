"""The verdict on a pipelined training: the smallest part that explains most of what stragglers cost it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.analysis.finding import WARNING, Finding
from stepscope.analysis.pipelines.operations import TALKS
from stepscope.core.numbers import format_share, format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.pipelines.what_if import WhatIf


SLOW, SLOW_BY_NOBODY = 1.05, 1.1
"""Slowdown from which stragglers are a finding; and if nothing explains much of it: noise alone costs some percent."""
MOST_OF_IT, MUCH_OF_IT, NEARLY = 0.5, 1 / 3, 0.8
"""Share of the slowdown that a part must explain to be named; if none does, the part that explains most must explain
the second. Workers and communication are named instead of a stage or replica if they explain the third of its share."""
SIMILAR = 0.5
"""Correlation of forward and backward passes above which long ones have more work."""
MOST_NAMES = 6
"""Workers that a sentence names one by one."""


class _Cause(NamedTuple):
    kind: str
    """One of link, worker, gc, stage, replica, work; "" if nothing explains much of the slowdown."""
    facts: dict[str, Any]
    who: str
    """What it is in words."""
    share: float
    """Share of the slowdown that it explains."""


def finding_of(found: WhatIf) -> Finding | None:
    """Return a replay as a finding; None if nobody is late."""
    if found.slowdown < SLOW:
        return None
    cause = _cause(found)
    if not cause.kind and found.slowdown < SLOW_BY_NOBODY:
        return None
    evidence = found.facts() | cause.facts | ({"cause": cause.kind} if cause.kind else {})
    text = f"stragglers make a step {format_value(found.slowdown - 1, 'ratio')} longer: {_text(found, cause)}"
    return Finding(
        *("straggler", text, WARNING, remedy("straggler", cause.kind, who=cause.who), evidence),
        gain_ratio=1 - 1 / found.slowdown,
        confidence=0.9 if cause.share >= MOST_OF_IT else 0.6,
        expected_gain=f"step {found.seconds:.3f} → {found.ideal_seconds:.3f} s if every operation takes its mean",
    )


def _cause(found: WhatIf) -> _Cause:
    """Return the smallest part that explains most of the slowdown, or else the one that explains the largest share."""
    causes = list(_causes(found))
    most = next((one for one in causes if one.share >= MOST_OF_IT), None)
    if most is not None:
        return most
    largest = max(causes, key=lambda one: one.share)
    may_be_noise = largest.kind in ("link", "gc") and found.slowdown < SLOW_BY_NOBODY
    return largest if largest.share >= MUCH_OF_IT and not may_be_noise else _largest(found)


def _text(found: WhatIf, cause: _Cause) -> str:
    if not cause.kind:
        most = f"{cause.who} explains the most, {format_share(cause.share)}"
        return f"no worker, stage or replica explains a third of it; {most}"
    verb = "explain" if cause.kind in ("work", "gc") or len(cause.facts.get("late_workers", ())) > 1 else "explains"
    # Parts that hold each other up can explain more than all.
    text = f"{cause.who} {verb} {'all' if cause.share >= 0.995 else format_share(cause.share)} of it"
    correlation = f"(r = {found.pass_correlation:.2f})"
    if cause.kind == "work":
        return f"{text}; long forward passes have long backward passes {correlation}"
    if cause.kind == "gc" and found.collected < MOST_OF_IT:
        return f"{text}; forward passes are long now and then, backward passes are not {correlation}"
    if cause.kind == "stage" and len(found.replicas) == 1:
        return f"{text} (with a single replica, a slow worker looks the same)"
    return text


def _causes(found: WhatIf) -> Iterator[_Cause]:
    """Yield what may be the cause, the smallest part first; a share of 0 if it is something else.

    A part that is made ideal loses the unequal work of its micro-batches, too. Where work is unequal, parts are named
    only if workers that are as fast as each other would save more than equal work.
    """
    stage, replica = _of_stage(found), _of_replica(found)
    is_slow_stage = int(stage.facts["late_stage"]) in found.slow_stages
    is_slow_replica = int(replica.facts["late_replica"]) in found.slow_replicas
    uneven = found.uneven if found.pass_correlation >= SIMILAR else 0.0
    lasts = found.uneven_workers >= uneven
    whole = NEARLY * max(stage.share * is_slow_stage, replica.share * is_slow_replica)
    yield _Cause("link", *_slow_talk(found), found.talk if found.talk >= max(whole, found.late_share) else 0.0)
    if found.late:
        yield _Cause("worker", *_late_workers(found), found.late_share if found.late_share >= whole and lasts else 0.0)
    is_planned = found.collected >= max(stage.share, replica.share)
    yield _Cause("gc", {}, "garbage collections", found.collected if is_planned else 0.0)
    if is_slow_stage:
        yield stage._replace(share=stage.share if stage.share >= replica.share and lasts else 0.0)
    if is_slow_replica:
        yield replica._replace(share=replica.share if lasts else 0.0)
    yield _Cause("work", {}, "micro-batches with unequal work, such as sequences of unequal length,", uneven)
    paused = found.uneven_forward if found.uneven_forward >= 2 * found.uneven_backward else 0.0
    yield _Cause("gc", {}, "pauses of Python on changing workers", paused)


def _largest(found: WhatIf) -> _Cause:
    """Return the stage or replica that explains most, as no cause."""
    return max(_of_stage(found), _of_replica(found), key=lambda one: one.share)._replace(kind="")


def _of_stage(found: WhatIf) -> _Cause:
    """Return the stage that explains most; a single one is the whole training, and explains nothing."""
    stage = max(found.stages, key=lambda one: found.stages[one])
    last = "last " if stage == max(found.stages) else "first " if stage == min(found.stages) else ""
    share = found.stages[stage] if len(found.stages) > 1 else 0.0
    return _Cause("stage", {"late_stage": stage}, f"the {last}pipeline stage {stage}", share)


def _of_replica(found: WhatIf) -> _Cause:
    """Return the replica that explains most; without stages, it is one worker."""
    replica = max(found.replicas, key=lambda one: found.replicas[one])
    share = found.replicas[replica] if len(found.replicas) > 1 else 0.0
    kind = "replica" if len(found.stages) > 1 else "worker"
    return _Cause(kind, {"late_replica": replica}, f"replica {replica}", share)


def _late_workers(found: WhatIf) -> tuple[dict[str, Any], str]:
    """Return the late workers as evidence and in words."""
    stage, replica = found.late[0]
    facts: dict[str, Any] = {"late_stage": stage, "late_replica": replica}
    facts["late_workers"] = [list(one) for one in found.late]
    names = [f"stage {at} of replica {copy}" if len(found.stages) > 1 else f"replica {copy}" for at, copy in found.late]
    if found.late[0] in found.ranks:
        facts["late_ranks"] = [found.ranks[one] for one in found.late]
        names = [f"{name} (rank {rank})" for name, rank in zip(names, facts["late_ranks"], strict=True)]
    if len(names) > MOST_NAMES:
        names[MOST_NAMES - 1 :] = [f"{len(names) - MOST_NAMES + 1} more"]
    return facts, " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _slow_talk(found: WhatIf) -> tuple[dict[str, Any], str]:
    """Return the slow communication as evidence and in words."""
    talks = {kind: share for kind, share in found.kinds.items() if kind.endswith("-transfer") or kind in TALKS}
    kind = max(talks, key=lambda one: talks[one], default="")
    facts: dict[str, Any] = {"late_kind": kind}
    if kind.endswith("-transfer") and found.link is not None:
        (sender, replica), (receiver, _) = found.link
        facts["late_link"] = [list(one) for one in found.link]
        return facts, f"communication, most between stages {sender} and {receiver} of replica {replica},"
    return facts, f"communication, most in {kind},"
