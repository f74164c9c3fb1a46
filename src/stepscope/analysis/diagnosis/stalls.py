"""Stalls: few steps that take far longer than the rest, again and again at an even distance.

What happens now and then by chance, as on a machine that others use too, has no rhythm. What the program does itself,
every so many steps or seconds, has one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.composition import PASSES
from stepscope.analysis.diagnosis.inputs import workers_of
from stepscope.analysis.diagnosis.rhythm import EVERY_OTHER, FEWEST, even
from stepscope.analysis.diagnosis.tell import slow, time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stepscope.analysis.diagnosis.tell import Case
    from stepscope.analysis.finding import Finding

    Numbers = NDArray[np.float64]

LONG = 3.0
"""A stalled step takes at least so many usual ones."""
MOST = 0.12
"""Share of the steps that may be stalled; more are no stalls, but how the run is."""
LEAST_SHARE = 0.1
"""Share of the time that stalls must take."""
STRONG = 0.3
"""Share of the longest stalls' excess that one must have to count for the rhythm."""
TOLD = ("checkpoint", "evaluation", "compile", "gc", "logging")
"""Phases that are findings of their own."""


def stalls(case: Case) -> tuple[list[Finding], dict[str, float]]:
    """Return the periodic stalls of a rank as a finding, and the seconds that they take from each phase."""
    steps = case.steps
    kept = steps.measured
    if int(kept.sum()) < 3 * FEWEST or steps.weight is not None:
        return [], {}
    own = _own(case)
    usual = float(np.median(own))
    stalled = own > LONG * max(usual, case.step / LONG)
    excess = np.where(stalled, own - usual, 0.0)
    if not stalled.any():
        return [], {}
    # The longest make the rhythm: what chance adds is shorter.
    strong = stalled & (excess > STRONG * float(np.quantile(excess[stalled], 0.9)))
    places = np.flatnonzero(strong)
    cost = float(excess[strong].sum())
    added = cost if case.made.disturbed > 0 else 0.0
    if cost < LEAST_SHARE * (case.total + added) or not FEWEST <= len(places) <= MOST * len(own):
        return [], {}
    index, moment = steps.step[kept][places].astype(np.float64), steps.end[kept][places]
    if float(np.median(np.diff(index))) < EVERY_OTHER:  # one stretch of slow steps: a change of the run, no rhythm
        return [], {}
    apart = even(index, EVERY_OTHER), even(moment)
    by_phase = {
        name: float((steps.phase(name) - np.median(steps.phase(name)))[strong].clip(0).sum())
        for name in steps.phases
        if name not in TOLD
    }
    most = max(by_phase, key=lambda name: by_phase[name])
    workers = workers_of(case)
    rounds = most == "data" and workers and apart[0] is not None and apart[0] <= 1.5 * workers
    if apart == (None, None) or rounds:  # batches that come in rounds: workers that do not keep up
        return [], {}
    case = replace(case, made=replace(case.made, total=case.total + added))
    every = f"{apart[0]:.0f} steps" if apart[0] is not None else f"{apart[1]:.3g} s"
    lasted = float(np.median(excess[strong]))
    text = f"every {every} a step takes {time(lasted)} more than the usual {time(case.step - cost / steps.count)}, "
    text += f"most of it in {most}: {cost / case.total:.0%} of the time"
    facts = {
        "phase": most,
        "stalls": len(places),
        "every_steps": apart[0],
        "every_seconds": float(np.median(np.diff(moment))),
        "stalled_seconds": lasted,
        "longest_step": int(steps.step[kept][int(np.argmax(np.where(strong, own, 0)))]),
        "phases": by_phase,
    }
    finding = slow(
        *("periodic_stall", case, cost, text),
        threshold=LEAST_SHARE,
        condition="without them",
        evidence=facts,
        every=every,
    )
    return [finding], by_phase


def _own(case: Case) -> Numbers:
    """Return of each measured step the seconds that no phase explains by itself; where others disturb, no passes."""
    steps = case.steps
    left_out = (*TOLD, *PASSES) if case.made.disturbed > 0 else TOLD
    gone = sum((steps.phase(name) for name in left_out if name in steps.phases), np.zeros(int(steps.measured.sum())))
    return np.asarray(np.nan_to_num(steps.seconds[steps.measured]) - gone)
