"""The composition of a step, as it would be on an otherwise idle machine.

If other programs use the same processors, a pass that runs in several threads takes ten to fifty times as long, because
at every operation the threads wait for the one that is not running. Waiting for a disk, a lock or a timer takes no
longer than before. So on a busy machine the phases that compute are taken from the undisturbed steps, and the verdict
is the same as on an idle one; an undisturbed run is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.periods import SHORTEST_IN_STEPS, period_of
from stepscope.analysis.series.robust import median
from stepscope.analysis.series.rolling import moving_median

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps
    from stepscope.core.arrays import Floats


PASSES = ("forward", "backward", "optimizer")
"""Phases that compute in several threads."""
SINGLE = ("data", "copy", "other", "logging", "gc", "communication")
"""Phases that wait or use one thread: other programs slow them down less."""
CALM = 0.05
"""Quantile of a phase over the steps that represents an undisturbed step."""
BURST, LEAST_BURST = 5.0, 1e-3
"""A step has a burst of a phase if it takes this many medians, or of so many seconds if the median is shorter."""
FLOOR = 3e-3
"""Seconds per step below which no phase of every step is a finding: at such a pace the interpreter itself dominates,
and collating a batch in the trainer takes 1 to 2 ms."""
SURE = 0.5
"""Share of the time from which half the floor suffices."""
OTHERS, PRESSED = 0.25, 0.15
"""A run is disturbed if other programs take this share of the processors, or if something waits for a processor in this
share of the time."""
FEW = 4
"""Number of checkpoints from which the shortest was hardly disturbed."""
FEWEST = 20
"""Minimum measured steps for a correction."""
NOW_AND_THEN, USUALLY = ("evaluation", "checkpoint"), 0.9
"""Phases that only some steps have; other work in such a step belongs to them above this quantile of other steps."""
WARM_UP, SHORTEST = 2, 20
"""Steps at the beginning that are left out of a run with at least so many."""
SPAN_TIMES, SPAN_OF_STEP = 3.0, 0.5
"""In a slow span a phase takes this many times its level, and at least this share of the median step more."""
SPAN_ALONE = 2.0
"""It must slow down by this factor more than the passes in the same steps, as other programs slow down all phases."""
SPAN_STEPS, SPAN_ROWS = 8, 40
"""Minimum steps of a slow span, and minimum rows of a run to detect one."""
SPAN_NEARLY_ALL, SPAN_WIDTH = 0.1, 5
"""Quantile of the phase in a span that must be slow, too; and the width of the moving median that defines a span, so
that single steps neither make nor break it."""


@dataclass(frozen=True)
class SlowSpan:
    """Spans of many steps in which one phase takes several times as long; `first` to `last` is the longest.

    A slow file system for a minute, or an epoch with a cold cache, is neither in every step nor periodic.
    """

    first: int
    last: int
    before: float
    """Seconds of the phase per step elsewhere."""
    during: float
    """Seconds of the phase in nearly every step of the spans."""
    seconds: float
    """Seconds that all spans took longer than as many other steps."""
    others: int
    """Number of further spans."""


@dataclass(frozen=True)
class Composition:
    """The seconds of all steps by phase, corrected if the run was disturbed."""

    spent: dict[str, float]
    total: float
    """Their sum: the seconds that all steps would have taken."""
    disturbed: float = 0.0
    """Seconds that the correction removed."""
    bursts: dict[str, float] = field(default_factory=dict)
    """Seconds of periodic bursts in the phases of a disturbed run."""
    slow_spans: dict[str, SlowSpan] = field(default_factory=dict)
    slowed: float = 1.0
    """Factor by which other programs slowed down the passes."""

    def without(self, excess: dict[str, float]) -> Composition:
        """Return it with less time in some phases, but the same total."""
        spent = {name: max(0.0, seconds - excess.get(name, 0.0)) for name, seconds in self.spent.items()}
        return replace(self, spent=spent)


def others_use(evidence: Evidence) -> float | None:
    """Return how many processors other programs used during the run; None if unknown."""
    used = evidence.mean("cpu/usage_ratio")
    own = [track.mean for by in evidence.matching("process/", "/tree_cpu_ratio").values() for track in by.values()]
    if used is None or not own or not evidence.processors:
        return None
    return used * evidence.processors - float(np.nansum(own))


def is_disturbed(evidence: Evidence) -> bool:
    """Return whether other programs, or too many threads of its own, made the run wait for processors."""
    others = others_use(evidence)
    pressed = evidence.mean("pressure/cpu_some_stalled_ratio") or 0.0
    return (others is not None and others >= OTHERS * (evidence.processors or 1.0)) or pressed >= PRESSED


def settled(steps: RankSteps | None) -> RankSteps | None:
    """Return the steps without warm-up: without the first ones, and without compile time."""
    if steps is None or len(steps) < SHORTEST:
        return steps
    kept = slice(0 if steps.weight is not None else WARM_UP, None)
    phases = {name: seconds[kept] for name, seconds in _with_own_work(steps).items()}
    compiling = np.nan_to_num(phases.pop("compile", np.zeros(len(steps.seconds[kept]))))
    weight = None if steps.weight is None else steps.weight[kept]
    seconds = np.maximum(0.0, steps.seconds[kept] - compiling)
    return replace(steps, step=steps.step[kept], end=steps.end[kept], seconds=seconds, phases=phases, weight=weight)


def _with_own_work(steps: RankSteps) -> dict[str, Floats]:
    """Return the phases of steps, evaluations and checkpoints with all the work that belongs to them.

    Around an evaluation or a checkpoint the program does what it does in no other step: makes batches, counts, copies.
    What such a step has more of this than others belongs to the evaluation or checkpoint.
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
        high = float(np.quantile(np.nan_to_num(values[usual]), USUALLY))
        level = median(np.nan_to_num(values[usual]))
        for row in np.flatnonzero(some & (np.nan_to_num(values) > high)):
            owner = most if rare[most][row] > 0 else next(other for other, each in rare.items() if each[row] > 0)
            phases[owner][row] += values[row] - level
            values[row] = level
    return phases


def composition(steps: RankSteps, evidence: Evidence) -> Composition:
    """Return the composition of a rank's steps."""
    spent = {name: steps.spent(name) for name in steps.phases}
    disturbed = is_disturbed(evidence)
    # Batches of workers come in bursts anyway, and late if others take the processors.
    late = {"data"} if disturbed and "data/load_seconds" in evidence.series else set()
    own = [name for name in SINGLE if name not in late]
    spans = _slow_spans(steps, [name for name in own if name != "gc"])
    if not disturbed or int(steps.measured.sum()) < FEWEST or steps.weight is not None:
        return Composition(spent, steps.total, slow_spans=spans)
    bursts: dict[str, float] = {}
    calm = dict(spent)
    for name, seconds in spent.items():
        if name in PASSES:
            calm[name] = min(seconds, float(np.quantile(steps.phase(name), CALM)) * steps.count)
        elif name in own:
            usual, bursts[name] = _undisturbed(steps, name)
            more = max(bursts[name], spans[name].seconds if name in spans else 0.0)
            calm[name] = min(seconds, usual + more)
    slowed = _slowed(spent, calm, *PASSES)
    if "checkpoint" in spent:
        calm["checkpoint"] = _checkpoints(steps, spent["checkpoint"], slowed)
    if "evaluation" in spent:
        calm["evaluation"] = _evaluation(spent, calm, steps.total)
    total = sum(calm.values())
    return Composition(calm, total, max(0.0, steps.total - total), bursts, spans, slowed)


def _slowed(spent: dict[str, float], calm: dict[str, float], *phases: str) -> float:
    """Return by which factor other programs slowed down some phases."""
    usual = sum(calm.get(name, 0.0) for name in phases)
    return max(1.0, sum(spent.get(name, 0.0) for name in phases) / usual) if usual > 0 else 1.0


def _checkpoints(steps: RankSteps, seconds: float, slowed: float) -> float:
    """Return the undisturbed seconds of checkpoints; all of a few may be slowed down, at most like the passes."""
    lengths = steps.phase("checkpoint")
    lengths = lengths[lengths > 0]
    return min(seconds, calm_sum(lengths)) if len(lengths) >= FEW else seconds / slowed


def _undisturbed(steps: RankSteps, name: str) -> tuple[float, float]:
    """Return the seconds of a single-threaded phase in undisturbed steps, and those of its periodic bursts.

    Other programs interrupt any phase now and then, for 10 ms and more, but not periodically. They lengthen periodic
    bursts, too, so these count as long as the shortest of them.
    """
    each = steps.phase(name)
    usual, middle = (float(value) for value in np.quantile(each, [CALM, 0.5]))
    bursts = each > BURST * max(middle, LEAST_BURST)
    own = 0.0
    places = steps.step[steps.measured][bursts].astype(np.float64)
    if bursts.any() and period_of(places, SHORTEST_IN_STEPS) is not None:
        own = (calm_sum(each[bursts]) - usual * int(bursts.sum())) * steps.count / len(each)
    return usual * steps.count, own


def calm_sum(lengths: Floats) -> float:
    """Return the total seconds of disturbed events if all were as short as the shortest."""
    return float(np.quantile(lengths, CALM)) * len(lengths) if len(lengths) else 0.0


def _evaluation(spent: dict[str, float], calm: dict[str, float], total: float) -> float:
    """Return the seconds of the evaluations of a disturbed run, without disturbance.

    They are passes, too, but perhaps none was undisturbed. They were slowed down at most like the forward pass, and
    would have had at least their share of all that was slowed down.
    """
    rest = sum(seconds for name, seconds in calm.items() if name != "evaluation")
    share = min(0.95, spent["evaluation"] / total)
    return max(spent["evaluation"] / _slowed(spent, calm, "forward"), rest * share / (1 - share))


def _slow_spans(steps: RankSteps, phases: list[str]) -> dict[str, SlowSpan]:
    return {phase: span for phase in phases if (span := _slow_span(steps, phase)) is not None}


def _slow_span(steps: RankSteps, phase: str) -> SlowSpan | None:
    """Return where a phase takes several times as long for many steps in a row; None if nowhere."""
    each, weight = steps.phase(phase), steps.weights[steps.measured]
    if len(each) < SPAN_ROWS:
        return None
    level = median(each)
    usual = median(np.nan_to_num(steps.seconds[steps.measured]))
    high = moving_median(each, SPAN_WIDTH) > max(SPAN_TIMES * level, level + SPAN_OF_STEP * usual)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], high.astype(np.int8), [0]])))
    parts = [(first, end) for first, end in edges.reshape(-1, 2).tolist() if weight[first:end].sum() >= SPAN_STEPS]
    if not parts:
        return None
    inside = np.zeros(len(each), bool)
    for first, end in parts:
        inside[first:end] = True
    during = float(np.quantile(each[inside], SPAN_NEARLY_ALL))
    passes = np.asarray(sum((steps.phase(name) for name in PASSES), np.zeros(len(each))))
    slowed = _ratio(median(passes[inside]), median(passes[~inside]))
    if during < SPAN_TIMES * level or _ratio(during, level) < SPAN_ALONE * slowed:
        return None
    first, end = max(parts, key=lambda part: float(weight[part[0] : part[1]].sum()))
    rows = steps.step[steps.measured]
    scale = steps.count / float(weight.sum())
    lost = (during - level) * float(weight[inside].sum()) * scale
    return SlowSpan(int(rows[first]), int(rows[end - 1]), level, during, lost, len(parts) - 1)


def _ratio(value: float, other: float) -> float:
    return value / other if other > 0 else float("inf") if value > 0 else 1.0
