"""Findings between ranks: stragglers, and time spent on communication.

The ranks of one job meet at every update: in a collective, or inside the backward pass where DDP reduces gradients. The
work of a rank before that is its own; all others wait for the rank whose own work takes longest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.aligned_ranks import aligned
from stepscope.analysis.diagnosis.case import Case, confidence, time
from stepscope.analysis.diagnosis.composition import FLOOR, SURE, composition, settled
from stepscope.analysis.diagnosis.rank_facts import rank_facts
from stepscope.analysis.series.robust import median
from stepscope.analysis.stragglers.course import lateness_of
from stepscope.core.numbers import format_share
from stepscope.core.vocabulary import MEETING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence
    from stepscope.analysis.finding import Finding
    from stepscope.analysis.stragglers.lateness import Lateness
    from stepscope.analysis.stragglers.pace import StepTable


LATE = 0.1
"""A straggler's own time exceeds that of the others by this share of a step."""
MOST_SHOWN = 64
"""Ranks whose waiting a finding lists."""
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
    table = aligned(evidence.ranks, evidence.nodes, rank_facts(evidence))
    late = lateness_of(table, LATE) if table is not None else None
    if late is None or table is None:
        return None
    first = next(steps for steps in evidence.ranks if steps.rank == late.first.rank)
    mine = settled(first) or first
    case = Case(mine, composition(mine, evidence), evidence)
    seconds = min(late.seconds, case.step) if late.often == 1.0 else late.seconds
    # Sentence and gain show the mean step; the lateness, which decides, is that of undisturbed steps.
    shown = case.step if late.often == 1.0 and late.since is None else late.step_seconds
    found = case.slow(
        *("straggler", seconds * _late_steps(late, table) * mine.count, late.text(seconds, shown)),
        late.facts() | {"late_seconds": seconds, "waiting_seconds": _waited(table)},
        threshold=LATE,
        condition=f"if {late.who} keeps up" if len(late.late) == 1 else f"if {late.who} keep up",
        rank=late.first.rank,
    )
    sure = confidence(late.confidence_share(), LATE, mine.count)
    return replace(found, remedy=late.remedy(), confidence=sure)


def _late_steps(late: Lateness, table: StepTable) -> float:
    """Return the share of the run's steps in which a rank is late."""
    first = -np.inf if late.since is None else late.since
    last = np.inf if late.until is None else late.until
    return late.often * float(((table.step >= first) & (table.step <= last)).mean())


def _waited(table: StepTable) -> dict[str, float]:
    """Return the usual seconds of a step in which each rank may have waited for others; of a few ranks."""
    spent = table.spent(*MEETING)
    return {str(rank): median(spent[at]) for at, rank in enumerate(list(table.ranks)[:MOST_SHOWN])}


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
