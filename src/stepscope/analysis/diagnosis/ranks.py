"""Findings between ranks: stragglers, and time spent on communication.

Ranks of one job meet at every update: in a collective, or inside the backward pass where DDP reduces gradients. What a
rank does before that is its own; the one whose own time is longest waits least, and all others wait for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.composition import FLOOR, SURE, composition, settled
from stepscope.analysis.diagnosis.tell import Case, confidence, slow, time
from stepscope.core.numbers import format_share
from stepscope.core.vocabulary import MEETING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps
    from stepscope.analysis.finding import Finding
    from stepscope.core.arrays import Floats, Integers


LATE = 0.15
"""Share of a step by which a rank's own time must exceed that of the others."""
MOSTLY = 0.6
"""Share of the steps in which it must be the slowest."""
CALM = 0.15
"""Quantile of a rank's own time over the steps that stands for it."""
FEWEST = 10
COMMUNICATES = 0.25
"""Share of the time in collectives from which on it is a finding."""
TALK = 5e-3
"""Seconds a step of collectives below which no share matters where processors compute: between two processes of one
machine a reduction of anything takes 2 to 4 ms."""
HIDDEN_RATIO, HIDDEN_SHARE = 5.0, 0.4
"""A backward pass that is so many times its forward pass, and the share of the time beyond three times, from which on
the reduction inside of it is what takes the time: it is twice as long by itself."""


def ranks(evidence: Evidence) -> list[Finding]:
    """Return the findings between the ranks of a run."""
    found = straggler(evidence)
    return [found] if found is not None else list(communication(evidence))


def straggler(evidence: Evidence) -> Finding | None:
    """Return the straggler; None if there is no straggler."""
    some = [steps for steps in evidence.ranks if steps.measured.any()]
    common = _common(some)
    if len(some) < 2 or len(common) < FEWEST:
        return None
    own = np.stack([_aligned(steps, _own(steps), common) for steps in some])
    # A low quantile: a neighbour on the machine makes now this, now that rank late, but leaves some steps alone.
    typical = np.quantile(own, CALM, axis=1)
    late = int(np.argmax(typical))
    cost = float(typical[late] - np.median(np.delete(typical, late)))
    whole = np.stack([_aligned(steps, steps.seconds[steps.measured], common) for steps in some])
    usual = float(np.median(np.quantile(whole, CALM, axis=1)))
    slowest = float((own.argmax(axis=0) == late).mean())
    if usual <= 0 or cost / usual < LATE or slowest < MOSTLY:
        return None
    return _late(evidence, some, late, cost, _where(some, late, common), usual, slowest)


def _late(
    evidence: Evidence,
    some: Sequence[RankSteps],
    late: int,
    cost: float,
    extra: dict[str, float],
    usual: float,
    often: float,
) -> Finding:
    """Return the finding about a rank that is late by `cost` seconds in a step of `usual`."""
    first = some[late]
    mine = settled(first) or first
    case = Case(mine, composition(mine, evidence), evidence)
    cost = min(cost, case.step)
    where = max(extra, key=lambda name: extra[name])
    # One step time in sentence and gain: its mean, of which the usual one that decided is the undisturbed part.
    text = f"rank {first.rank} is late by {time(cost)} in a step of {time(case.step)}, most of it in {where}; "
    text += "the other rank waits for it" if len(some) == 2 else f"the other {len(some) - 1} ranks wait for it"
    waits = {str(steps.rank): float(np.median(_waited(steps))) for steps in some}
    facts = {"late_rank": first.rank, "late_seconds": cost, "phase": where, "phases": extra, "waiting_seconds": waits}
    made = slow(
        *("straggler", case, cost * mine.count, text),
        threshold=LATE,
        condition=f"if rank {first.rank} keeps up",
        cause="data" if where == "data" else "compute" if where in ("forward", "optimizer") else where,
        evidence=facts | {"steps_slowest": often},
        rank=first.rank,
    )
    return replace(made, confidence=confidence(cost / usual, LATE, mine.count))


def _where(some: Sequence[RankSteps], late: int, common: Integers) -> dict[str, float]:
    """Return by how many seconds a rank is late in each phase of its own."""
    names = sorted({name for steps in some for name in steps.phases if name not in MEETING})
    return {name: _extra(some, late, name, common) for name in names}


def _own(steps: RankSteps) -> Floats:
    """Return a rank's own time in each measured step: without what it may have waited for others."""
    return np.asarray(np.nan_to_num(steps.seconds[steps.measured]) - _waited(steps))


def _waited(steps: RankSteps) -> Floats:
    return np.asarray(sum((steps.phase(name) for name in MEETING), np.zeros(int(steps.measured.sum()))))


def _common(every: Sequence[RankSteps]) -> Integers:
    """Return the steps that all ranks have measured, without the first."""
    if not every:
        return np.empty(0, np.int64)
    found = every[0].step[every[0].measured]
    for steps in every[1:]:
        found = np.intersect1d(found, steps.step[steps.measured])
    return np.unique(found)[1:]


def _aligned(steps: RankSteps, values: Floats, common: Integers) -> Floats:
    """Return the values of the common steps; of a step that was done twice the last."""
    step = steps.step[steps.measured]
    order = np.argsort(step, kind="stable")
    place = np.searchsorted(step[order], common, "right") - 1
    return np.asarray(values[order][place])


def _extra(every: Sequence[RankSteps], late: int, name: str, common: Integers) -> float:
    values = [float(np.quantile(_aligned(steps, steps.phase(name), common), CALM)) for steps in every]
    return values[late] - float(np.median(np.delete(values, late)))


def _inside_backward(case: Case) -> float:
    """Return the seconds of reductions inside the backward pass that no computing hides.

    By DDP's own clock where that is known, else by how much longer than usual the backward pass is. On processors a
    reduction computes, too, beside what it is meant to hide behind: where it matters at all, what it takes from the
    pass is all that makes it longer than two forward passes.
    """
    forward, backward = case.spent("forward"), case.spent("backward")
    exposed = _exposed(case)
    if exposed is not None:
        exposed = min(exposed, max(0.0, backward - forward))  # the pass computes at least as long as the forward pass
        matters = exposed >= max(COMMUNICATES * case.total, TALK * case.steps.count) and forward > 0
        return max(exposed, backward - 2 * forward) if _on_processors(case) and matters else exposed
    if len(case.evidence.ranks) < 2 or forward <= 0 or backward <= HIDDEN_RATIO * forward:
        return 0.0
    return backward - 2 * forward if backward - 3 * forward > HIDDEN_SHARE * case.total else 0.0


def _on_processors(case: Case) -> bool:
    """Return whether the run computes without a GPU."""
    return any(one.get("device") == "cpu" for one in case.evidence.of_kind("torch_setup"))


def _exposed(case: Case) -> float | None:
    """Return the seconds of reductions that DDP's clock has seen exposed; None if it has seen none.

    Of one step the rank that waits least has what the network takes, the others wait for it as well. Where others use
    the processors, it is taken as a share of its pass, which they lengthened equally.
    """
    tracks = [track.finite() for track in case.evidence.series.get("communication/exposed_seconds", {}).values()]
    tracks = [track for track in tracks if len(track)]
    if not tracks:
        return None
    every = np.concatenate([track.step for track in tracks])
    seen, counts = np.unique(every, return_counts=True)
    common = seen[counts >= len(tracks)] if (counts >= len(tracks)).any() else seen
    least = [
        min(float(track.value[track.step == step].min()) for track in tracks if step in track.step) for step in common
    ]
    if case.made.disturbed <= 0:  # their middle: few are measured, most of them at the beginning
        return float(np.median(least)) * case.steps.count
    usual = float(np.median(case.steps.phase("backward")))
    return float(np.median(least)) / usual * case.spent("backward") if usual > 0 else None


def communication(evidence: Evidence) -> Iterator[Finding]:
    """Yield the time spent on collectives, including those inside a backward pass as far as they are visible."""
    steps = settled(evidence.leader)
    if steps is None or steps.count < FEWEST or steps.total <= 0:
        return
    case = Case(steps, composition(steps, evidence), evidence)
    total = case.spent("communication")
    hidden = min(_inside_backward(case), max(0.0, case.total - total))
    cost = total + hidden
    share, floor = cost / case.total, TALK if _on_processors(case) else FLOOR
    if share < COMMUNICATES or cost / steps.count < (floor / 2 if share >= SURE else floor):
        return
    inside = f", {time(hidden / steps.count)} of it inside the backward pass" if hidden else ""
    text = f"{format_share(cost / case.total)} of the time is spent on communication with other ranks: "
    text += f"{time(cost / steps.count)}"
    text += f" of a step of {time(case.step)}{inside}"
    facts = {"phase": "communication", "phase_seconds": total, "inside_backward_seconds": hidden}
    yield slow(
        *("communication_bound", case, cost, text),
        threshold=COMMUNICATES,
        condition="if it overlaps with compute or happens less often",
        evidence=facts,
    )
