"""Stalls: a few steps take far longer than the rest, at regular intervals.

What happens by chance, as on a machine that others use, too, is not periodic. What the program does itself, every so
many steps or seconds, is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.case import time
from stepscope.analysis.diagnosis.composition import PASSES, calm_sum
from stepscope.analysis.diagnosis.evidence import RARE
from stepscope.analysis.diagnosis.inputs import workers_of
from stepscope.analysis.diagnosis.periods import FEWEST, SHORTEST_IN_STEPS, period_of
from stepscope.analysis.series.robust import median
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.case import Case
    from stepscope.analysis.finding import Finding
    from stepscope.core.arrays import Floats, Integers, Mask

    Stalls = tuple[list[Finding], dict[str, float]]


LONG = 3.0
"""A stalled step takes this many usual ones."""
MOST, LEAST_SHARE = 0.12, 0.1
"""Maximum share of stalled steps, as more are normal for the run; and minimum share of the time that stalls take."""
STRONG = 0.3
"""Only stalls with this share of the longest stalls' excess show the period."""
NAMED = ("checkpoint", "evaluation", "compile", "gc", "logging")
"""Phases with findings of their own."""
UNKNOWN = "a phase that was not measured"


def stalls(case: Case) -> Stalls:
    """Return the periodic stalls of a rank as a finding, and the seconds that they take from each phase.

    If steps are short, phases are measured only in some of them. Then the durations of all steps are searched, too, and
    the finding that explains more time wins. The longest stalls show the period: random ones are shorter, but may be
    more frequent.
    """
    measured = case.steps.measured
    found: list[Stalls] = []
    if case.steps.weight is not None:
        return [], {}
    for kept in (measured,) if measured.all() else (measured, np.ones(len(measured), bool)):
        own = _unexplained(case, kept)
        usual = median(own) if len(own) else 0.0
        excess = np.where(own > LONG * max(usual, case.step / LONG), own - usual, 0.0)
        if int(kept.sum()) < 3 * FEWEST or not (excess > 0).any():
            continue
        longest = float(np.quantile(excess[excess > 0], 0.9))
        if float((excess > STRONG * longest).mean()) > MOST:  # most of these are random, but not the longest
            longest = median(np.sort(excess)[-FEWEST:])
        periodic = _periodic(case, kept, np.where(excess > STRONG * longest, excess, 0.0))
        if periodic is not None:
            found.append(periodic)
    return max(found, key=lambda one: one[0][0].cost_seconds or 0.0, default=([], {}))


def _periodic(case: Case, kept: Mask, excess: Floats) -> Stalls | None:
    """Return the stalls of some steps, given their excess seconds; None if they are not periodic, or too short."""
    steps = case.steps
    strong = excess > 0
    places = np.flatnonzero(strong)
    by_phase = taken = _by_phase(case, steps.step[kept][strong])
    added = 0.0
    if case.made.disturbed > 0:  # other programs made them longer; the correction removed all that is not periodic
        excess = np.where(strong, np.minimum(excess, calm_sum(excess[strong]) / len(places)), 0.0)
        taken = {name: min(seconds, case.made.bursts.get(name, 0.0)) for name, seconds in by_phase.items()}
        added = max(0.0, float(excess.sum()) - sum(taken.values()))
    cost = float(excess.sum())
    if cost < LEAST_SHARE * (case.total + added) or not FEWEST <= len(places) <= MOST * len(excess):
        return None
    index, when = steps.step[kept][places].astype(np.float64), steps.end[kept][places]
    if median(np.diff(index)) < SHORTEST_IN_STEPS:  # one span of slow steps
        return None
    in_steps, in_seconds = period_of(index, SHORTEST_IN_STEPS), period_of(when)
    lasted = median(excess[strong])
    most = max(by_phase, key=lambda name: by_phase[name], default=UNKNOWN)
    if (in_steps is None and in_seconds is None) or _has_finding(case, most, in_steps, lasted):
        return None
    case = replace(case, made=replace(case.made, total=case.total + added))
    every = f"{in_steps:.0f} steps" if in_steps is not None else f"{in_seconds:.3g} s"
    text = f"every {every} a step takes {time(lasted)} more than the usual {time(case.step - cost / steps.count)}, "
    text += f"most of it in {most}: {format_share(cost / case.total)} of the time"
    facts = {
        "phase": most,
        "stalls": len(places),
        "every_steps": in_steps,
        "every_seconds": median(np.diff(when)),
        "stalled_seconds": lasted,
        "longest_step": int(steps.step[kept][int(np.argmax(excess))]),
        "phases": by_phase,
    }
    finding = case.slow(
        "periodic_stall", cost, text, facts, threshold=LEAST_SHARE, condition="without them", every=every
    )
    return [finding], {name: seconds for name, seconds in taken.items() if name not in NAMED}


def _by_phase(case: Case, stalled: Integers) -> dict[str, float]:
    """Return by how many seconds the stalled steps exceed the median of each phase, scaled to all steps."""
    steps = case.steps
    among = np.isin(steps.step[steps.measured], stalled)
    found = {}
    for name in steps.phases if among.any() else ():
        each = steps.phase(name)
        more, whole = float((each - median(each))[among].clip(0).sum()), float(each.sum())
        found[name] = steps.spent(name) * more / whole if whole > 0 else 0.0
    return found


def _has_finding(case: Case, most: str, period: float | None, lasted: float) -> bool:
    """Return whether another finding is about these stalls: a named phase, or workers that deliver in rounds."""
    workers = workers_of(case)
    if most == UNKNOWN:  # it may be a phase that other steps were measured with
        named = [case.steps.phase(name) for name in NAMED if name in case.steps.phases]
        return workers > 0 or any(len(each) and float(each.max()) > STRONG * lasted for each in named)
    rounds = most == "data" and workers > 0 and period is not None and period <= 1.5 * workers
    return most in NAMED or rounds


def _unexplained(case: Case, kept: Mask) -> Floats:
    """Return the seconds of each step outside named phases; on a busy machine, outside the passes, too."""
    steps = case.steps
    phases = {name: np.nan_to_num(seconds) for name, seconds in steps.phases.items()}
    left_out = (*NAMED, *PASSES) if case.made.disturbed > 0 else NAMED
    own = np.nan_to_num(steps.seconds)
    own -= sum((phases[name] for name in left_out if name in phases), np.zeros(len(steps)))
    rare, whole = np.zeros(len(steps), bool), np.zeros(len(steps), bool)
    for name, seconds in steps.phases.items():
        if name in RARE:
            rare |= phases[name] > 0
        else:
            whole |= np.isfinite(seconds)
    own[rare & ~whole] = np.median(own)  # the other work of such a step was not measured
    return np.asarray(own[kept])
