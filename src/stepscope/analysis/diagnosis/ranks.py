"""Findings between ranks: stragglers, and time spent on communication.

The ranks of one job meet at every update: in a collective, or inside the backward pass where DDP reduces gradients. The
work of a rank before that is its own; all others wait for the rank whose own work takes longest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.diagnosis.case import Case, confidence, time
from stepscope.analysis.diagnosis.composition import FLOOR, SURE, composition, settled
from stepscope.analysis.series.robust import median
from stepscope.core.numbers import format_share
from stepscope.core.vocabulary import MEETING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps
    from stepscope.analysis.finding import Finding
    from stepscope.core.arrays import Floats, Integers


LATE, MOSTLY = 0.15, 0.6
"""A straggler's own time exceeds that of the others by this share of a step; it is the slowest in 60 % of the steps."""
CALM = 0.15
"""Quantile of a rank's own time over the steps that represents the rank."""
FEWEST = 10
COMMUNICATES = 0.25
"""Share of the time in collectives from which it is a finding."""
TALK = 5e-3
"""Seconds of collectives per step below which no share matters on CPUs: any reduction between two processes of one
machine takes 2 to 4 ms."""
HIDDEN_RATIO, HIDDEN_SHARE = 5.0, 0.4
"""A backward pass that takes this many forward passes contains a slow reduction, if what exceeds three forward passes
takes this share of the time. By itself it takes two."""


def ranks(evidence: Evidence) -> list[Finding]:
    """Return the findings between the ranks of a run."""
    found = _straggler(evidence)
    return [found] if found is not None else list(_communication(evidence))


def _straggler(evidence: Evidence) -> Finding | None:
    some = [steps for steps in evidence.ranks if steps.measured.any()]
    common = _common(some)
    if len(some) < 2 or len(common) < FEWEST:
        return None
    waited = [_waited(steps) for steps in some]
    whole = np.stack([_aligned(steps, steps.seconds[steps.measured], common) for steps in some])
    own = np.nan_to_num(whole)
    own -= np.stack([_aligned(steps, each, common) for steps, each in zip(some, waited, strict=True)])
    # A low quantile: another program delays now this rank, now that one, but leaves some steps alone.
    typical, usual = np.quantile(own, CALM, axis=1), median(np.quantile(whole, CALM, axis=1))
    late = int(np.argmax(typical))
    cost, often = _beyond_others(typical, late), float((own.argmax(axis=0) == late).mean())
    if usual <= 0 or cost / usual < LATE or often < MOSTLY:
        return None
    first, names = some[late], {name for steps in some for name in steps.phases if name not in MEETING}
    mine = settled(first) or first
    case = Case(mine, composition(mine, evidence), evidence)
    cost = min(cost, case.step)
    phases = {name: _late_in(some, late, name, common) for name in sorted(names)}
    waits = {str(steps.rank): median(each) for steps, each in zip(some, waited, strict=True)}
    found = _late(case, cost, phases, {"waiting_seconds": waits, "steps_slowest": often})
    # Sentence and gain show the mean step; `usual`, which decides, is the undisturbed part of it.
    return replace(found, confidence=confidence(cost / usual, LATE, mine.count))


def _late(case: Case, cost: float, phases: dict[str, float], facts: dict[str, Any]) -> Finding:
    """Return the finding about the late rank of a case, given by how many seconds it is late in each phase."""
    rank, where, others = case.steps.rank, max(phases, key=lambda name: phases[name]), len(facts["waiting_seconds"]) - 1
    text = f"rank {rank} is late by {time(cost)} in a step of {time(case.step)}, most of it in {where}; "
    text += "the other rank waits for it" if others == 1 else f"the other {others} ranks wait for it"
    return case.slow(
        *("straggler", cost * case.steps.count, text),
        {"late_rank": rank, "late_seconds": cost, "phase": where, "phases": phases} | facts,
        threshold=LATE,
        condition=f"if rank {rank} keeps up",
        cause="compute" if where in ("forward", "optimizer") else where,
        rank=rank,
    )


def _beyond_others(values: Floats, late: int) -> float:
    return float(values[late] - np.median(np.delete(values, late)))


def _late_in(every: Sequence[RankSteps], late: int, phase: str, common: Integers) -> float:
    """Return by how many seconds a rank is late in a phase."""
    seconds = [np.quantile(_aligned(steps, steps.phase(phase), common), CALM) for steps in every]
    return _beyond_others(np.array(seconds), late)


def _waited(steps: RankSteps) -> Floats:
    """Return the seconds of each measured step in which a rank may have waited for others."""
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
    """Return the values of the common steps; of a step that was done twice, the last."""
    step = steps.step[steps.measured]
    order = np.argsort(step, kind="stable")
    place = np.searchsorted(step[order], common, "right") - 1
    return np.asarray(values[order][place])


def _inside_backward(case: Case) -> float:
    """Return the seconds of reductions inside the backward pass that do not overlap with compute.

    By DDP's own clock if it is known, else by how much longer than usual the backward pass is. On CPUs a reduction
    competes with the computing it should overlap with: if it matters at all, it is everything beyond two forward
    passes.
    """
    forward, backward = case.spent("forward"), case.spent("backward")
    exposed = _exposed(case)
    if exposed is not None:
        exposed = min(exposed, max(0.0, backward - forward))  # the pass computes at least as long as the forward pass
        matters = exposed >= max(COMMUNICATES * case.total, TALK * case.steps.count) and forward > 0
        return max(exposed, backward - 2 * forward) if case.evidence.is_on_cpu and matters else exposed
    if len(case.evidence.ranks) < 2 or forward <= 0 or backward <= HIDDEN_RATIO * forward:
        return 0.0
    return backward - 2 * forward if backward - 3 * forward > HIDDEN_SHARE * case.total else 0.0


def _exposed(case: Case) -> float | None:
    """Return the seconds of exposed reductions by DDP's own clock; None if it saw none.

    In each step the rank that waits least shows what the network takes; the others also wait for that rank. On a busy
    machine it is taken as a share of the backward pass, which other programs lengthen equally.
    """
    every = [track.finite() for track in case.evidence.series.get("communication/exposed_seconds", {}).values()]
    tracks = [track for track in every if len(track)]
    if not tracks:
        return None
    seen, counts = np.unique(np.concatenate([track.step for track in tracks]), return_counts=True)
    common = seen[counts >= len(tracks)] if (counts >= len(tracks)).any() else seen
    least = [
        min(float(track.value[track.step == step].min()) for track in tracks if step in track.step) for step in common
    ]
    if case.made.disturbed <= 0:  # their middle: few are measured, most of them at the beginning
        return median(least) * case.steps.count
    usual = median(case.steps.phase("backward"))
    return median(least) / usual * case.spent("backward") if usual > 0 else None


def _communication(evidence: Evidence) -> Iterator[Finding]:
    """Yield the time spent on collectives, including those inside a backward pass as far as they are visible."""
    steps = settled(evidence.leader)
    if steps is None or steps.count < FEWEST or steps.total <= 0:
        return
    case = Case(steps, composition(steps, evidence), evidence)
    total = case.spent("communication")
    hidden = min(_inside_backward(case), max(0.0, case.total - total))
    cost = total + hidden
    share, floor = cost / case.total, TALK if case.evidence.is_on_cpu else FLOOR
    if share < COMMUNICATES or cost / steps.count < (floor / 2 if share >= SURE else floor):
        return
    inside = f", {time(hidden / steps.count)} of it inside the backward pass" if hidden else ""
    text = f"{format_share(share)} of the time is spent on communication with other ranks: "
    text += f"{time(cost / steps.count)} of a step of {time(case.step)}{inside}"
    facts = {"phase": "communication", "phase_seconds": total, "inside_backward_seconds": hidden}
    condition = "if it overlaps with compute or happens less often"
    yield case.slow("communication_bound", cost, text, facts, threshold=COMMUNICATES, condition=condition)
