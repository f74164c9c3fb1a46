"""Stalls: few steps that take far longer than the rest, again and again at an even distance.

What happens occasionally by chance, as on a machine that others use too, has no rhythm. What the program does itself,
every so many steps or seconds, has one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.composition import PASSES, calm_sum
from stepscope.analysis.diagnosis.evidence import RARE
from stepscope.analysis.diagnosis.inputs import workers_of
from stepscope.analysis.diagnosis.rhythm import EVERY_OTHER, FEWEST, even
from stepscope.analysis.diagnosis.tell import slow, time
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.evidence import RankSteps
    from stepscope.analysis.diagnosis.tell import Case
    from stepscope.analysis.finding import Finding
    from stepscope.core.arrays import Floats, Integers, Mask


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


UNKNOWN = "a phase that was not measured"


def stalls(case: Case) -> tuple[list[Finding], dict[str, float]]:
    """Return the periodic stalls of a rank as a finding, and the seconds that they take from each phase.

    Phases are measured in some steps only where steps are short; a rhythm that the durations of all steps show by
    themselves is enough, and is the better one where it tells more. The longest make the rhythm: what chance adds is
    shorter, but may be more.
    """
    measured = case.steps.measured
    told: list[tuple[list[Finding], dict[str, float]]] = []
    if case.steps.weight is not None:
        return [], {}
    for kept in (measured,) if measured.all() else (measured, np.ones(len(measured), bool)):
        own = _own(case, kept)
        usual = float(np.median(own)) if len(own) else 0.0
        excess = np.where(own > LONG * max(usual, case.step / LONG), own - usual, 0.0)
        if int(kept.sum()) < 3 * FEWEST or not (excess > 0).any():
            continue
        longest = float(np.quantile(excess[excess > 0], 0.9))
        if float((excess > STRONG * longest).mean()) > MOST:  # most of these are chance's, and the longest are not
            longest = float(np.median(np.sort(excess)[-FEWEST:]))
        found = _rhythm(case, kept, np.where(excess > STRONG * longest, excess, 0.0))
        if found is not None:
            told.append(found)
    return max(told, key=lambda one: one[0][0].cost_seconds or 0.0, default=([], {}))


def _rhythm(case: Case, kept: Mask, excess: Floats) -> tuple[list[Finding], dict[str, float]] | None:
    """Return the stalls of some steps, whose seconds beyond the usual are given; None if they are none."""
    steps = case.steps
    strong = excess > 0
    places = np.flatnonzero(strong)
    if case.made.disturbed > 0:  # which made them longer as well
        excess = np.where(strong, np.minimum(excess, calm_sum(excess[strong]) / len(places)), 0.0)
    cost = float(excess.sum())
    by_phase = taken = _by_phase(case, steps.step[kept][strong])
    added = 0.0
    if case.made.disturbed > 0:  # of which all that has no rhythm was taken off
        taken = {name: min(seconds, case.made.bursts.get(name, 0.0)) for name, seconds in by_phase.items()}
        added = max(0.0, cost - sum(taken.values()))
    if cost < LEAST_SHARE * (case.total + added) or not FEWEST <= len(places) <= MOST * len(excess):
        return None
    index, moment = steps.step[kept][places].astype(np.float64), steps.end[kept][places]
    if float(np.median(np.diff(index))) < EVERY_OTHER:  # one span of slow steps: a change of the run, no rhythm
        return None
    apart = even(index, EVERY_OTHER), even(moment)
    lasted = float(np.median(excess[strong]))
    most = max(by_phase, key=lambda name: by_phase[name], default=UNKNOWN)
    if apart == (None, None) or _otherwise(case, most, apart[0], lasted):
        return None
    case = replace(case, made=replace(case.made, total=case.total + added))
    every = f"{apart[0]:.0f} steps" if apart[0] is not None else f"{apart[1]:.3g} s"
    text = f"every {every} a step takes {time(lasted)} more than the usual {time(case.step - cost / steps.count)}, "
    text += f"most of it in {most}: {format_share(cost / case.total)} of the time"
    facts = {
        "phase": most,
        "stalls": len(places),
        "every_steps": apart[0],
        "every_seconds": float(np.median(np.diff(moment))),
        "stalled_seconds": lasted,
        "longest_step": int(steps.step[kept][int(np.argmax(excess))]),
        "phases": by_phase,
    }
    finding = slow(
        *("periodic_stall", case, cost, text),
        threshold=LEAST_SHARE,
        condition="without them",
        evidence=facts,
        every=every,
    )
    return [finding], {name: seconds for name, seconds in taken.items() if name not in TOLD}


def _by_phase(case: Case, stalled: Integers) -> dict[str, float]:
    """Return the seconds that the stalled steps have more of each phase than others, computed as for a whole phase."""
    steps = case.steps
    among = np.isin(steps.step[steps.measured], stalled)
    if not among.any():
        return {}
    found = {}
    for name in steps.phases:
        each = steps.phase(name)
        more, whole = float((each - np.median(each))[among].clip(0).sum()), float(each.sum())
        found[name] = steps.spent(name) * more / whole if whole > 0 else 0.0
    return found


def _otherwise(case: Case, most: str, apart: float | None, lasted: float) -> bool:
    """Return whether another finding is about these stalls: what has a name, and batches that come in rounds."""
    workers = workers_of(case)
    if most == UNKNOWN:  # it may be what other steps that were measured have
        named = [case.steps.phase(name) for name in TOLD if name in case.steps.phases]
        return workers > 0 or any(len(each) and float(each.max()) > STRONG * lasted for each in named)
    rounds = most == "data" and workers > 0 and apart is not None and apart <= 1.5 * workers
    return most in TOLD or rounds


def _own(case: Case, kept: Mask) -> Floats:
    """Return of each step the seconds that no phase explains by itself; where others disturb, no passes."""
    steps = case.steps
    left_out = (*TOLD, *PASSES) if case.made.disturbed > 0 else TOLD
    gone = sum((np.nan_to_num(steps.phases[name]) for name in left_out if name in steps.phases), np.zeros(len(steps)))
    own = np.asarray(np.nan_to_num(steps.seconds) - gone)
    rare = sum((np.nan_to_num(steps.phases[name]) > 0 for name in RARE if name in steps.phases), np.zeros(len(steps)))
    unknown = (rare > 0) & ~_measured_whole(steps)
    own[unknown] = np.median(own)  # other work of such a step was not measured
    return own[kept]


def _measured_whole(steps: RankSteps) -> Mask:
    """Return in which steps all phases were measured, and not only what happens occasionally."""
    found = np.zeros(len(steps), bool)
    for name, seconds in steps.phases.items():
        if name not in RARE:
            found |= np.isfinite(seconds)
    return found
