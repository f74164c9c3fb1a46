"""Compare groups of runs: speed, phases, throughput, memory and loss, each with its interval and verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.compare import likeness
from stepscope.analysis.compare.difference import (
    CONFIDENCE,
    NOT_COMPARABLE,
    SAME,
    TOO_LARGE,
    Difference,
    difference,
)
from stepscope.analysis.compare.gate import Gate, Judgement, judge
from stepscope.analysis.compare.level import QUIET, QUIET_RATE, Level, Levels, at_step, at_time, flow, peak, profiles
from stepscope.analysis.compare.quantity import (
    LOSS,
    MEAN_STEP,
    MEMORY,
    PHASE,
    RATE,
    SCORE,
    STEP,
    TIME,
    TOTAL,
    Spec,
    is_loss,
    is_score,
    kind_of,
    unit_in,
)
from stepscope.analysis.compare.recording import common_steps, in_turn, together
from stepscope.analysis.compare.schedule import EQUAL, OTHER, PARTS, UNKNOWN, Schedule, by_share, schedule_of
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepscope.analysis.compare.quantity import QuantityKind
    from stepscope.analysis.compare.recording import Curve, Group, Recording
    from stepscope.analysis.finding import Finding

THROUGHPUT = ("samples_per_second", "tokens_per_second")
SAMPLES = "samples"
BATCH_TOLERANCE = 0.01
"""Ratio by which the samples of a step may differ before step times are not comparable."""
TOGETHER = 1.25
"""Ratio for runs that took place at the same time: what the machine does then is in the steps of all of them. 40 pairs
of equal torch loops on two busy cores differ by 0.25 % (standard deviation); this and the noise of their kind allow
0.32 %."""
FLOOR_FREEDOM = 8.0
"""Degrees of freedom of the difference of the fastest steps of equal runs. Of 165 pairs of equal torch loops, one after
the other, on two cores with 16 programs waiting for them, 1.8 % differ by more than the interval that follows."""
CERTAIN = 0.999
"""The fastest steps are set aside if their change lies outside the interval of all steps at this confidence: equal
runs, whose disturbances differ, hardly ever get there."""
SEVERAL = 20
"""Maximum curves (losses and scores) that are compared unasked."""


@dataclass(frozen=True)
class Compared:
    """One quantity in two groups."""

    quantity: str
    unit: str
    definition: str
    """How its value is computed from a run."""
    found: Difference

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        found = self.found
        names = ("a", "b", "difference", "ratio", "confidence", "verdict", "why", "noise")
        interval = None if found.low is None else [found.low, found.high]
        facts = {"quantity": self.quantity, "unit": self.unit, "definition": self.definition, "interval": interval}
        return facts | {name: getattr(found, name) for name in names} | {"runs": list(found.runs)}


@dataclass(frozen=True)
class Comparison:
    """Group B compared with group A."""

    a: str
    b: str
    quantities: tuple[Compared, ...]
    gates: tuple[Judgement, ...] = ()
    findings: tuple[Finding, ...] = field(default=())
    """Differences in hardware, batch, build or settings."""

    def quantity(self, name: str) -> Compared | None:
        """Return one quantity, if it was compared."""
        return next((item for item in self.quantities if item.quantity == name), None)

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "a": self.a,
            "b": self.b,
            "quantities": [item.facts() for item in self.quantities],
            "gates": [item.facts() for item in self.gates],
            "findings": [item.facts() for item in self.findings],
        }


def compare(
    first: Group,
    second: Group,
    *,
    asked: Sequence[Spec] = (),
    gates: Sequence[Gate] = (),
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compare two groups of runs; A, the first, is the reference.

    The usual quantities are compared, those that are asked for, and those that gates name.
    """
    specs = dict.fromkeys([*usual(first, second), *asked, *(gate.spec for gate in gates)])
    compared = {spec: compare_one(spec, first, second, confidence) for spec in specs}
    judged = tuple(judge(gate, compared[gate.spec].found) for gate in gates)
    findings = (*likeness.unlikeness([first, second]), *mixtures([first, second]))
    return Comparison(first.label, second.label, tuple(compared.values()), judged, findings)


def compare_one(spec: Spec, first: Group, second: Group, confidence: float = CONFIDENCE) -> Compared:
    """Compare one quantity."""
    unit, groups = unit_in(spec.name), [first, second]
    levels = measure(spec, groups)
    if not levels.groups:
        return Compared(spec.text, unit, "", Difference(NOT_COMPARABLE, levels.text, confidence=confidence))
    found = _difference(spec, levels, groups, confidence)
    if levels.whole and found.ratio is not None:
        every = measure(spec, groups, quiet=False)
        certain = _difference(spec, every, groups, CERTAIN) if every.groups else found
        if certain.low is not None and certain.high is not None and not certain.low <= found.ratio <= certain.high:
            levels, found = every, _difference(spec, every, groups, confidence)  # the fastest steps changed otherwise
    found = _undisputed(spec, found, groups, confidence)
    other = _batches(first, second) if spec.name in {STEP, MEAN_STEP} or spec.name.startswith(PHASE) else ""
    if other:
        found = Difference(NOT_COMPARABLE, other, found.a, found.b, runs=found.runs, confidence=confidence)
    order = "; A and B took turns" if in_turn(first, second) else ""
    order = "; all ran at the same time" if together(_runs(groups)) else order
    return Compared(spec.text, unit, levels.text + order, found)


def _difference(spec: Spec, levels: Levels, groups: Sequence[Group], confidence: float) -> Difference:
    with np.errstate(all="ignore"):  # an overflow is not finite, and is reported as such
        kind, pairs = kind_in(spec, levels, groups), in_turn(groups[0], groups[1])
        return difference(levels.groups[0], levels.groups[1], kind, confidence, pairs)


def _undisputed(spec: Spec, found: Difference, groups: Sequence[Group], confidence: float) -> Difference:
    """Return the difference at equal steps, unless it is unclear whether that is fair.

    If runs have different lengths, one may be unfinished, or each may have its own schedule. If equal shares of the
    runs disagree with equal steps, neither is trusted.
    """
    if spec.seconds is not None or spec.share is not None or kind_of(spec.name) is MEMORY:
        return found
    schedule = schedule_of(groups)
    if schedule.kind != UNKNOWN:
        return found
    levels = measure(replace(spec, step=None), groups, schedule=replace(schedule, kind=OTHER))
    shares = _difference(spec, levels, groups, confidence) if levels.groups else found
    if shares.verdict == found.verdict:
        return found
    by_step, by_length = ("no different" if one.verdict == SAME else one.verdict for one in (found, shares))
    why = (
        f"the runs have {schedule.text}, and it is unclear whether one is unfinished or each had a schedule of its "
        f"own: at equal steps B is {by_step}, at equal shares {by_length}; log learning_rate, or give the "
        "planned steps in the config as max_steps"
    )
    return Difference(NOT_COMPARABLE, why, found.a, found.b, runs=found.runs, confidence=confidence)


def kind_in(spec: Spec, levels: Levels, groups: Sequence[Group]) -> QuantityKind:
    """Return the kind of a quantity with the noise that these runs have."""
    kind = kind_of(spec.name)
    floor = replace(kind, run_over_steps=1.0, freedom=FLOOR_FREEDOM)
    return floor if levels.whole else replace(kind, run_over_steps=_over(kind, groups))


def _over(kind: QuantityKind, groups: Sequence[Group]) -> float:
    return min(kind.run_over_steps, TOGETHER) if together(_runs(groups)) else kind.run_over_steps


def _runs(groups: Sequence[Group]) -> list[Recording]:
    return [run for group in groups for run in group.runs]


def measure(spec: Spec, groups: Sequence[Group], *, quiet: bool = True, schedule: Schedule | None = None) -> Levels:
    """Return the level of a quantity in each run of each group.

    `quiet`: the fastest steps may represent all, if the machine disturbed the others. `schedule` says how the lengths
    of the runs compare; if omitted, it is derived from the runs.
    """
    with np.errstate(all="ignore"):  # as above
        found = _measure(spec, groups, schedule or schedule_of(groups), quiet=quiet)
    is_finite = all(math.isfinite(level.value) for group in found.groups for level in group)
    return found if is_finite else Levels((), TOO_LARGE)


def _measure(spec: Spec, groups: Sequence[Group], schedule: Schedule, *, quiet: bool) -> Levels:
    total = spec.name == TOTAL and not any(TOTAL in run.curves for run in _runs(groups))  # no metric of that name
    name = STEP if spec.name == MEAN_STEP or total else spec.name
    missing = _missing(name, groups)
    if missing:
        return Levels((), missing)
    curves = [group.curves(name) for group in groups]
    if total:
        return _total(curves, groups, schedule)
    if spec.step is not None:
        return _noted(at_step(curves, spec.step), schedule)
    if spec.seconds is not None:
        return _noted(at_time(curves, None if math.isinf(spec.seconds) else spec.seconds), schedule)
    if kind_of(spec.name) is MEMORY:
        return peak(curves)
    return _along(spec, curves, groups, schedule, quiet=quiet)


def _missing(name: str, groups: Sequence[Group]) -> str:
    """Return which group does not have a metric in all of its runs; empty if all have."""
    for group in groups:
        having = sum(name in run.curves for run in group.runs)
        if having < len(group.runs) or not having:
            some = f"only {having} of {len(group.runs)} runs of {group.label} have the metric {name}"
            return some if having else f"{group.label} has no metric {name}"
    return ""


def _along(
    spec: Spec, curves: list[list[Curve]], groups: Sequence[Group], schedule: Schedule, *, quiet: bool
) -> Levels:
    """Measure over equal steps, or over equal shares if the runs differ in length."""
    kind, parts = kind_of(spec.name), 0
    if spec.share is not None and spec.share > schedule.share:
        return Levels((), f"not every run came as far: {_done(schedule)}")
    if spec.share is not None or schedule.kind == OTHER:
        rest = iter(by_share([curve for group in curves for curve in group], schedule.lengths))
        curves, parts = [[next(rest) for _ in group] for group in curves], PARTS
    if kind in {LOSS, SCORE} or spec.share is not None:
        part = int(spec.share * PARTS) if spec.share is not None and spec.share < 1 else None
        return at_step(curves, part, parts)
    views = {TIME: QUIET, RATE: QUIET_RATE} if spec.name != MEAN_STEP and quiet else {}
    return flow(curves, views.get(kind), _over(kind, groups), parts)


def _done(schedule: Schedule) -> str:
    least = format_share(min(schedule.reached, default=0))
    return f"{schedule.text} planned, of which the least complete run did {least}"


def _noted(levels: Levels, schedule: Schedule) -> Levels:
    """Add a remark that the runs differ in length."""
    if schedule.kind == EQUAL or not levels.groups:
        return levels
    return replace(levels, text=f"{levels.text}, of runs of other lengths ({schedule.text})")


def _total(curves: Sequence[Sequence[Curve]], groups: Sequence[Group], schedule: Schedule) -> Levels:
    """Return how long each run took from its first step to its last; its error is that of the steps."""
    if not schedule.finished:
        return Levels((), f"not every run reached its end ({_done(schedule)})")
    if schedule.kind == UNKNOWN:
        return Levels((), f"nothing says whether every run was finished ({schedule.text})")
    ends = [np.array([curve.elapsed[-1] if len(curve) else math.nan for curve in group]) for group in curves]
    if not all(np.isfinite(some).all() and (some > 0).all() for some in ends):
        return Levels((), "not every run tells its time")
    steps = _measure(Spec(MEAN_STEP), groups, schedule, quiet=False).groups
    found = []
    for some, levels in zip(ends, steps or [[Level(0.0)] * len(some) for some in ends], strict=True):
        errors = [level.error / level.value if level.value > 0 else 0.0 for level in levels]
        found.append(tuple(Level(float(end), float(end) * error) for end, error in zip(some, errors, strict=True)))
    return Levels(tuple(found), f"from the first step to the last ({schedule.text})")


def usual(first: Group, second: Group) -> Iterator[Spec]:
    """Yield the quantities that are compared unasked: those that both groups have, speed first."""
    shared = set(first.names()) & set(second.names())
    schedule = schedule_of([first, second])
    if STEP in shared:
        yield Spec(STEP)
        yield Spec(MEAN_STEP)
        if schedule.complete:
            yield Spec(TOTAL)
    yield from (Spec(name) for name in THROUGHPUT if name in shared)
    yield from (Spec(name) for name in sorted(shared) if name.startswith(PHASE))
    peaks = (name for name in sorted(shared) if "peak" in name and not name.startswith("gpu/"))  # GPUs are joined
    yield from (Spec(name) for name in peaks if kind_of(name) is MEMORY)
    curves = [name for name in sorted(shared) if is_loss(name) or is_score(name)][:SEVERAL]
    for name in sorted(curves, key=lambda name: (name != "loss", name)):
        yield from _usual_of_curve(name, [first.curves(name), second.curves(name)], schedule)


def _usual_of_curve(name: str, groups: Sequence[Sequence[Curve]], schedule: Schedule) -> Iterator[Spec]:
    """Yield where a loss or score is compared: at an equal step and time, or at an equal share if the lengths differ.

    At a time when one of two finished runs was not yet finished, it looks worse than it is.
    """
    if schedule.kind == OTHER:
        share = math.floor(schedule.share * 100) / 100
        if share > 0:
            yield Spec(name, share=share)
        return
    curves = [curve for group in groups for curve in group]
    steps = common_steps(curves)
    if len(steps):
        yield Spec(name, step=int(steps[-1]))
    ends = [float(curve.elapsed[-1]) if len(curve) else math.nan for curve in curves]
    timed = bool(ends) and all(math.isfinite(end) and end > 0 for end in ends)
    if timed and schedule.kind == EQUAL and not schedule.complete:  # else the total time is better
        unit = 10.0 ** (math.floor(math.log10(min(ends))) - 2)  # to three digits
        yield Spec(name, seconds=math.floor(min(ends) / unit) * unit if unit < 1 else float(math.floor(min(ends))))


def _batches(first: Group, second: Group) -> str:
    """Return why the step times of two groups are not comparable (different batches); empty if they are."""
    sizes = []
    for group in (first, second):
        curves = group.curves(SAMPLES)
        if len(curves) < len(group.runs) or not all(len(curve) for curve in curves):
            return ""
        sizes.append(sum(float(curve.value.mean()) for curve in curves) / len(curves))
    if min(sizes) <= 0 or max(sizes) / min(sizes) - 1 <= BATCH_TOLERANCE:
        return ""
    return f"{sizes[0]:g} samples a step against {sizes[1]:g}; compare samples_per_second"


def mixtures(groups: Sequence[Group]) -> Iterator[Finding]:
    """Yield the groups whose runs fall into two clusters by their step time."""
    for group in groups:
        curves = group.curves(STEP)
        with np.errstate(all="ignore"):
            found = likeness.mixture(profiles(curves)) if len(curves) == len(group.runs) else None
        if found is not None:
            yield likeness.apart(group, found, STEP)
