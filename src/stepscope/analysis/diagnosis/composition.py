"""The composition of a step, as it would be on an otherwise idle machine.

Where other programs use the same processors, a pass that is computed by several threads takes ten to fifty times as
long: at every operation the threads wait for the one that does not run. Waiting for a disk, a lock or a timer takes no
longer than before. So on a busy machine the phases that compute are taken as they are in the steps that were not
disturbed, and the verdict is the same as on a quiet one; a run that was not disturbed is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.rhythm import EVERY_OTHER, even
from stepscope.analysis.diagnosis.stretches import stretch_of

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps
    from stepscope.analysis.diagnosis.stretches import SlowSpan
    from stepscope.core.arrays import Floats


PASSES = ("forward", "backward", "optimizer")
"""Phases that compute in several threads."""
ELSE = ("data", "copy", "other", "logging", "gc", "communication")
"""Phases that wait or use one thread, which a neighbour slows down less, but also computes in between."""
STRETCHED = ("data", "copy", "other", "logging", "communication")
"""Phases that may take longer for a span of steps by a cause of their own."""
CALM = 0.05
"""Quantile of a phase over the steps that stands for an undisturbed step."""
BURST, LEAST_BURST = 5.0, 1e-3
"""Medians, and at least so many seconds, from which on a step's share of a phase is a burst."""
FLOOR = 3e-3
"""Seconds a step below which no share matters for the phases of every step: at such a pace the interpreter itself is
what costs, and collating a batch in the trainer takes 1 to 2 ms."""
SURE = 0.5
"""Share from which on half of the floor suffices."""
OTHERS, PRESSED = 0.25, 0.15
"""Share of the processors that other programs must take, or of the time in which something must wait for a processor,
for a run to count as disturbed."""
FEW = 4
"""Checkpoints from which on the shortest was hardly disturbed."""
FEWEST = 20
"""Measured steps without which nothing is corrected."""
NOW_AND_THEN, USUALLY = ("evaluation", "checkpoint"), 0.9
"""Phases that only some steps have; and the quantile over the others that what comes with them must exceed."""
WARM_UP, SHORTEST = 2, 20
"""Steps at the beginning that are left out of a run with more than that many."""


@dataclass(frozen=True)
class Composition:
    """The seconds of all steps by phase, those of a disturbed run corrected."""

    spent: dict[str, float]
    total: float
    """Their sum: the seconds that all steps would have taken."""
    disturbed: float = 0.0
    """Seconds that were taken off."""
    bursts: dict[str, float] = field(default_factory=dict)
    """Seconds of a disturbed run's phases that come on top of the usual periodically."""
    stretches: dict[str, SlowSpan] = field(default_factory=dict)
    """Where phases take several times as long for many steps in a row."""
    slowed: float = 1.0
    """Times that others made the passes of a disturbed run longer."""

    def share(self, phase: str) -> float:
        """Return the share of a phase."""
        return self.spent.get(phase, 0.0) / self.total if self.total > 0 else 0.0

    def without(self, excess: dict[str, float]) -> Composition:
        """Return it with less time in some phases, but the same total."""
        spent = {name: max(0.0, seconds - excess.get(name, 0.0)) for name, seconds in self.spent.items()}
        return replace(self, spent=spent)


def others_use(evidence: Evidence) -> float | None:
    """Return how many processors other programs took during the run; None if unknown."""
    used = evidence.mean("cpu/usage_ratio")
    own = [track.mean for by in evidence.matching("process/", "/tree_cpu_ratio").values() for track in by.values()]
    if used is None or not own or not evidence.processors:
        return None
    return used * evidence.processors - float(np.nansum(own))


def is_disturbed(evidence: Evidence) -> bool:
    """Return whether other programs, or too many threads of the run's own, made it wait for processors."""
    others = others_use(evidence)
    pressed = evidence.mean("pressure/cpu_some_stalled_ratio") or 0.0
    return (others is not None and others >= OTHERS * (evidence.processors or 1.0)) or pressed >= PRESSED


def settled(steps: RankSteps | None) -> RankSteps | None:
    """Return the steps without warm-up: without the first ones, and without the time of compiling."""
    if steps is None or len(steps) < SHORTEST:
        return steps
    kept = slice(0 if steps.weight is not None else WARM_UP, None)
    phases = {name: seconds[kept] for name, seconds in _whole(steps).items()}
    compiling = np.nan_to_num(phases.pop("compile", np.zeros(len(steps.seconds[kept]))))
    weight = None if steps.weight is None else steps.weight[kept]
    seconds = np.maximum(0.0, steps.seconds[kept] - compiling)
    return replace(steps, step=steps.step[kept], end=steps.end[kept], seconds=seconds, phases=phases, weight=weight)


def _whole(steps: RankSteps) -> dict[str, Floats]:
    """Return the phases of steps, those that happen occasionally with all that belongs to them.

    Between the passes of an evaluation, and around the writing of a checkpoint, the program does what it does in no
    other step: makes batches, counts, copies. What a step with one of them has more of that than others is theirs.
    """
    phases = {name: np.array(seconds) for name, seconds in steps.phases.items()}
    rare = {name: np.nan_to_num(phases[name]) for name in NOW_AND_THEN if name in phases}
    some = sum((each > 0 for each in rare.values()), np.zeros(len(steps), bool))
    usual = steps.measured & ~some
    if steps.weight is not None or not some.any() or int(usual.sum()) < max(FEWEST, int(some.sum())):
        return phases
    most = max(rare, key=lambda name: float(rare[name].sum()))
    for name in ("other", "data"):
        if name not in phases:
            continue
        values = phases[name]
        high = float(np.nanquantile(np.nan_to_num(values[usual]), USUALLY))
        level = float(np.nanmedian(np.nan_to_num(values[usual])))
        for row in np.flatnonzero(some & (np.nan_to_num(values) > high)):
            owner = most if rare[most][row] > 0 else next(other for other, each in rare.items() if each[row] > 0)
            phases[owner][row] += values[row] - level
            values[row] = level
    return phases


def _undisturbed(steps: RankSteps, name: str) -> tuple[float, float]:
    """Return the seconds of a phase of one thread as it is in most steps, and what comes on top of that periodically.

    A neighbour stops any phase occasionally, for 10 ms and more, but without a rhythm. The bursts of a rhythm are made
    longer by it as all else is, so they are taken as long as the shortest of them, too.
    """
    each = steps.phase(name)
    usual, middle = (float(value) for value in np.quantile(each, [CALM, 0.5]))
    bursts = each > BURST * max(middle, LEAST_BURST)
    own = 0.0
    if bursts.any() and even(steps.step[steps.measured][bursts].astype(np.float64), EVERY_OTHER) is not None:
        own = (calm_sum(each[bursts]) - usual * int(bursts.sum())) * steps.count / len(each)
    return usual * steps.count, own


def calm_sum(lengths: Floats) -> float:
    """Return the seconds of things that a busy machine made longer, had it left them all as it left the shortest."""
    return float(np.quantile(lengths, CALM)) * len(lengths) if len(lengths) else 0.0


def composition(steps: RankSteps, evidence: Evidence) -> Composition:
    """Return the composition of a rank's steps."""
    spent = {name: steps.spent(name) for name in steps.phases}
    disturbed = is_disturbed(evidence)
    # Batches of workers come in bursts anyway, and late where others take the processors.
    own = tuple(name for name in ELSE if name != "data" or "data/load_seconds" not in evidence.series)
    stretches = _stretches(steps, own if disturbed else ELSE)
    if not disturbed or int(steps.measured.sum()) < FEWEST or steps.weight is not None:
        return Composition(spent, steps.total, stretches=stretches)
    bursts: dict[str, float] = {}
    calm = dict(spent)
    for name, seconds in spent.items():
        if name in PASSES:
            calm[name] = min(seconds, float(np.quantile(steps.phase(name), CALM)) * steps.count)
        elif name in own:
            usual, bursts[name] = _undisturbed(steps, name)
            more = max(bursts[name], stretches[name].seconds if name in stretches else 0.0)
            calm[name] = min(seconds, usual + more)
    slowed = _slowed(spent, calm)
    if "checkpoint" in spent:
        calm["checkpoint"] = _checkpoints(steps, spent["checkpoint"], slowed)
    if "evaluation" in spent:
        calm["evaluation"] = _evaluation(spent, calm, steps.total)
    total = sum(calm.values())
    return Composition(calm, total, max(0.0, steps.total - total), bursts, stretches, slowed)


def _slowed(spent: dict[str, float], calm: dict[str, float]) -> float:
    """Return how many times longer others made the passes: what computes in one thread is made longer by less."""
    usual = sum(calm.get(name, 0.0) for name in PASSES)
    return max(1.0, sum(spent.get(name, 0.0) for name in PASSES) / usual) if usual > 0 else 1.0


def _checkpoints(steps: RankSteps, seconds: float, slowed: float) -> float:
    """Return the seconds of a disturbed run's checkpoints; of few, all of which may be disturbed, what is sure."""
    lengths = steps.phase("checkpoint")
    lengths = lengths[lengths > 0]
    return min(seconds, calm_sum(lengths)) if len(lengths) >= FEW else seconds / slowed


def _stretches(steps: RankSteps, among: tuple[str, ...]) -> dict[str, SlowSpan]:
    """Return the spans of slow steps by phase."""
    told = {name: stretch_of(steps, name, PASSES) for name in STRETCHED if name in among}
    return {name: found for name, found in told.items() if found is not None}


def _evaluation(spent: dict[str, float], calm: dict[str, float], total: float) -> float:
    """Return the seconds of the evaluations of a disturbed run, without disturbance.

    They are passes as well, of which no undisturbed one may be left. Slowed down like the passes at most, and their
    share of all that was slowed down is the least that they would have had.
    """
    forward = calm.get("forward", 0.0)
    slowed = max(1.0, spent["forward"] / forward) if forward > 0 else 1.0
    rest = sum(seconds for name, seconds in calm.items() if name != "evaluation")
    share = min(0.95, spent["evaluation"] / total)
    return max(spent["evaluation"] / slowed, rest * share / (1 - share))
