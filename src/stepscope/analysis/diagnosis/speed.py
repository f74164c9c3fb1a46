"""Findings about speed: time lost to data, copies, the host, checkpoints, evaluation and more.

The seconds of each phase are compared with the seconds of all steps. Stalls at regular intervals are separated first: a
step that is slow now and then has another cause than one that is always slow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.case import Case, confidence, time
from stepscope.analysis.diagnosis.composition import CALM, FLOOR, PASSES, SURE, composition, settled
from stepscope.analysis.diagnosis.inputs import input_bound, processors_of_a_rank, workers_of
from stepscope.analysis.diagnosis.stalls import stalls
from stepscope.analysis.finding import INFO
from stepscope.core.numbers import format_share, format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.analysis.diagnosis.evidence import Evidence
    from stepscope.analysis.finding import Finding

FEWEST = 8
"""Minimum steps to judge the speed."""
SHARES = {"data": 0.25, "copy": 0.2, "other": 0.3, "checkpoint": 0.2, "evaluation": 0.33, "logging": 0.15, "gc": 0.1}
"""Share of the time of all steps from which a phase is a finding. A healthy loop spends 1 to 15 % on data (collating in
the trainer), up to 28 % on evaluation if the held-out set is as large as the training set, and a few percent on the
others; a cause that is worth a remedy takes far more."""
SPANS = {
    "data": ("input_bound", "waiting for data"),
    "copy": ("copy_bound", "copying between devices"),
    "other": ("host_bound", "the program's own Python"),
    "logging": ("logging_heavy", "logging"),
    "communication": ("communication_bound", "talking to other ranks"),
}
"""Phases that may be slow for a span of steps: the kind of the finding, and its words."""
LEAST_SPAN = 0.05
"""Minimum share of the time that such spans cost."""
COMPUTING, HEAVY = 0.8, 0.02
"""A run is compute-bound if passes and optimizer take this share, and so many seconds of an undisturbed step."""
BUSY_GPU = 0.7
"""GPU utilization from which a run on GPUs can be compute-bound."""
PADDED = 0.6
"""Share of padding from which it is a finding: random batches of uniform lengths have up to one half."""
MANY_OPERATIONS, TINY, FUSED = 1000, 25e-6, 0.2
"""Operations per step from which they are too many; seconds per operation, forward and backward, up to which launching
dominates (torch needs 5 to 20 µs); and the share of the time that remains with a fifth of them."""
PER_TENSOR, TINY_UPDATE = 10, 150e-6
"""Operations per tensor of an optimizer that updates tensor by tensor; and the seconds per tensor up to which launching
dominates."""
MOSTLY = 0.6
STEEP = 1.5
"""Power with which the floor of the program's own time falls as its share grows: 3 ms at 30 %, 1.1 at 60 %, 0.7 at
80 %. An empty loop around a tiny model takes 0.6 ms at 66 % on a busy machine, and 0.2 ms on an idle one."""
LEAST_RECOMPILES, RECOMPILE_SHARE = 3, 0.15
"""Minimum recompilations, and their share of the time. First compilations are warm-up, however long they take."""


def speed(evidence: Evidence) -> Iterator[Finding]:
    """Yield what makes the steps of the leading rank slow."""
    case = case_of(evidence)
    if case is None:
        return
    periodic, excess = stalls(case)
    yield from periodic
    case = replace(case, made=case.made.without(excess))
    late = [one for name in case.made.slow_spans for one in _slow_span(case, name)]
    yield from late
    # The steps outside these spans may be slow as well.
    case = replace(case, made=case.made.without({str(one.evidence["phase"]): one.cost_seconds or 0.0 for one in late}))
    waiting = input_bound(case, SHARES["data"]) if _reaches(case, "data") else None
    if waiting is not None:
        yield waiting
    yield from _in_every_step(case)
    yield from _rare(case, "checkpoint_heavy", "checkpoint", "saving checkpoints")
    yield from _rare(case, "evaluation_heavy", "evaluation", "evaluation")
    yield from _garbage(case)
    yield from _compile(case)
    yield from _padding(case)
    yield from _small(case)
    yield from _compute(case)


def case_of(evidence: Evidence) -> Case | None:
    """Return the rank that represents all ranks; None if it has too few steps."""
    steps = settled(evidence.leader)
    if steps is None or steps.count < FEWEST or steps.total <= 0:
        return None
    return Case(steps, composition(steps, evidence), evidence)


def _slow_span(case: Case, phase: str) -> Iterator[Finding]:
    """Yield that a phase took several times as long for many steps in a row."""
    found = case.made.slow_spans[phase]
    share = found.seconds / case.total if case.total > 0 else 0.0
    if share < LEAST_SPAN or found.during < FLOOR:
        return
    kind, what = SPANS[phase]
    more = f" (and in {found.others} more interval{'s' if found.others > 1 else ''})" if found.others else ""
    text = f"from step {found.first} to {found.last}{more} {what} took {time(found.during)} per step, elsewhere "
    text += f"{time(found.before)}: {format_share(share)} of the time of all steps"
    facts = {"phase": phase, "phase_seconds": case.spent(phase), "during_seconds": found.during}
    facts |= {"elsewhere_seconds": found.before, "range": [found.first, found.last], "stretches": found.others + 1}
    condition = "on average, if these steps become as fast as the others"
    fields = {"first": found.first, "last": found.last}
    yield case.slow(
        kind, found.seconds, text, facts, threshold=LEAST_SPAN, condition=condition, cause="stretch", **fields
    )


def _reaches(case: Case, phase: str) -> bool:
    """Return whether a phase of every step takes enough to matter."""
    share = case.share(phase)
    if share < SHARES[phase]:
        return False
    floor = FLOOR / 2 if share >= SURE else FLOOR
    if phase == "other":  # in a fast step almost nothing else is left if the program reads every sample
        floor = FLOOR * (SHARES[phase] / share) ** STEEP
    return case.each(phase) >= floor


def _in_every_step(case: Case) -> Iterator[Finding]:
    """Yield copies, the program's own code and logging that take too much of every step."""
    # Copies by the device's clock; those that overlap with compute, so that the sum exceeds the step, are hidden.
    copies, *passes = (case.evidence.mean(f"device/{name}_seconds") or 0.0 for name in ("copy", *PASSES))
    exposed = max(0.0, copies - max(0.0, copies + sum(passes) - case.step)) * case.steps.count
    if exposed > case.spent("copy"):
        case = replace(case, made=replace(case.made, spent={**case.made.spent, "copy": exposed}))
    of_step = f"of a step of {time(case.step)}"
    for phase, kind, what, per, condition in (
        ("copy", "copy_bound", "spent on device copies", "per step", "if copies overlap with compute"),
        ("other", "host_bound", "the program's own code, outside data, passes and optimizer", of_step, "without it"),
        ("logging", "logging_heavy", "spent on logging and printing", of_step, "without it"),
    ):
        if _reaches(case, phase) and (phase != "other" or "forward" in case.steps.phases):
            text = f"{format_share(case.share(phase))} of the time is {what}: {time(case.each(phase))} {per}"
            yield _plain(kind, case, phase, text, condition)


def _plain(kind: str, case: Case, phase: str, text: str, condition: str) -> Finding:
    facts = {"phase": phase, "phase_seconds": case.spent(phase)}
    return case.slow(kind, case.spent(phase), text, facts, threshold=SHARES[phase], condition=condition)


def _rare(case: Case, kind: str, phase: str, what: str) -> Iterator[Finding]:
    """Yield what happens now and then and takes too much in all."""
    share, total = case.share(phase), case.spent(phase)
    if share < SHARES[phase]:
        return
    happened = max(1, int((case.steps.phase(phase) > 0).sum()))
    every = case.steps.count / happened
    text = f"{format_share(share)} of the time is spent on {what}: "
    facts = {"phase": phase, "phase_seconds": total, "times": happened, "every_steps": every}
    if happened > 1:
        text += f"{happened} times {time(total / happened)}, every {every:.0f} steps"
        cost, condition = total * (1 - 1 / happened), "if it happens once"
    else:
        text += f"once {time(total)}"
        cost, condition = total, "without it"
    yield case.slow(kind, cost, text, facts, threshold=SHARES[phase], condition=condition)


def _garbage(case: Case) -> Iterator[Finding]:
    if case.share("gc") < SHARES["gc"] or case.each("gc") < FLOOR / 2:
        return
    pauses = case.steps.phase("gc")
    count = int((pauses > 0).sum())
    each = case.spent("gc") / case.steps.count * len(pauses) / max(1, count)  # consistent with the share
    text = f"{format_share(case.share('gc'))} of the time is spent on garbage collection: {count} "
    text += f"pause{'s' if count > 1 else ''} of {time(each)}"
    yield _plain("gc_pauses", case, "gc", text, "without them")


def _compile(case: Case) -> Iterator[Finding]:
    """Yield recompilations. First compilations are the price of a compiled model."""
    events = [one for one in case.evidence.of_kind("compile") if one.get("rank", 0) == case.steps.rank]
    again = [float(one.get("seconds") or 0.0) for one in events if one.get("recompiled")]
    # On a busy machine compiling took longer by at most the same factor as the passes.
    cost = sum(again) / case.made.slowed
    whole = case.total + sum(float(one.get("seconds") or 0.0) for one in events) / case.made.slowed
    if len(again) < LEAST_RECOMPILES or cost / whole < RECOMPILE_SHARE:
        return
    text = f"{format_share(cost / whole)} of the time is spent on recompilation: "
    text += f"{len(again)} times, {time(cost / len(again))} each"
    facts = {"phase": "compile", "phase_seconds": cost, "recompilations": len(again)}
    wide = replace(case, made=replace(case.made, total=whole))
    yield wide.slow("compile_heavy", cost, text, facts, threshold=RECOMPILE_SHARE, condition="once it is compiled")


def _padding(case: Case) -> Iterator[Finding]:
    share = case.evidence.mean("padding_ratio")
    if share is None or share < PADDED:
        return
    passes = case.spent("forward", "backward")
    text = f"{format_share(share)} of the tokens in a batch are padding: that share of the passes is wasted"
    facts = {"padding_ratio": share, "passes_seconds": passes}
    condition = "if batches contain no padding"
    found = case.slow("padding_waste", share * passes, text, facts, threshold=PADDED, condition=condition)
    yield replace(found, confidence=confidence(share, PADDED, case.steps.count))


def _small(case: Case) -> Iterator[Finding]:
    """Yield that a step consists of so many tiny operations that launching them takes the time."""
    nodes = max((_count(one, "nodes") for one in case.evidence.of_kind("graph")), default=0)
    setups = [one for one in case.evidence.of_kind("optimizer_setup") if one.get("one_by_one") is True]
    tensors = max((_count(one, "tensors") for one in setups), default=0)
    passes, update = case.each("forward", "backward"), case.each("optimizer")
    tiny_passes, tiny_update = 0 < passes <= TINY * nodes, 0 < update <= TINY_UPDATE * tensors
    seconds = passes * tiny_passes + update * tiny_update
    operations = nodes * tiny_passes + PER_TENSOR * tensors * tiny_update
    used = _gpu_use(case.evidence)
    if operations < MANY_OPERATIONS or seconds < max(FLOOR, MOSTLY * case.step) or (used or 0.0) >= BUSY_GPU:
        return  # a busy GPU hides the launches
    parts = [f"{nodes} operations in the passes, {time(passes / nodes)} each"] if tiny_passes else []
    if tiny_update:
        parts.append(f"{tensors} tensors that the optimizer updates one by one, {time(update / tensors)} each")
    text = f"{format_share(seconds / case.step)} of the time is spent launching tiny operations: {' and '.join(parts)}"
    updates = update * tiny_update > seconds / 2
    facts = {"operations": operations, "tensors": tensors, "phase": "optimizer" if updates else "forward"}
    found = case.slow(
        *("host_bound", (1 - FUSED) * seconds * case.steps.count, text, facts | {"seconds_each": seconds / operations}),
        threshold=MOSTLY,
        condition=f"if they are {1 / FUSED:.0f} times fewer",
        cause="small_updates" if updates else "small_operations",
        operations=nodes,
        each=time(passes / max(1, nodes)),
        tensors=tensors,
    )
    yield replace(found, confidence=0.7)


def _count(event: Mapping[str, object], key: str) -> int:
    value = event.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _gpu_use(evidence: Evidence) -> float | None:
    return evidence.mean("gpu/mean_utilization_ratio") or evidence.mean("gpu/0/utilization_ratio")


def _compute(case: Case) -> Iterator[Finding]:
    """Yield that a run does little but compute: not a problem, but only the model itself can become faster."""
    share, used = case.share(*PASSES), _gpu_use(case.evidence)
    if share < COMPUTING or (used is not None and used < BUSY_GPU):  # with an idle GPU the passes only queue work
        return
    least = sum(float(np.quantile(case.steps.phase(name), CALM)) for name in PASSES)
    if least < HEAVY:
        return
    spent = {name: case.spent(name) for name in PASSES}
    parts = ", ".join(f"{name} {format_share(case.share(name))}" for name in PASSES)
    text = f"{format_share(share)} of the time is compute ({parts}): the model itself takes {time(case.step)} per step"
    cause, fields = _remaining(case, spent)
    mfu = case.evidence.mean("mfu_ratio")
    if mfu is not None:
        text += f"; it reaches {format_value(mfu, 'ratio')} of the peak (MFU)"
    facts = {"passes": spent, "least_seconds": least, "mfu_ratio": mfu, **fields}
    found = case.slow("compute_bound", 0.0, text, facts, threshold=COMPUTING)
    sure, advice = confidence(share, COMPUTING, case.steps.count), remedy("compute_bound", cause, **fields)
    found = replace(found, severity=INFO, remedy=advice, confidence=sure)
    yield replace(found, gain_ratio=None, cost_seconds=None, expected_gain="")


def _remaining(case: Case, spent: dict[str, float]) -> tuple[str, dict[str, object]]:
    """Return what can still become faster: unused processors, too much precision, or the slowest pass."""
    setup = next(iter(case.evidence.of_kind("torch_setup")), {})
    threads, own = setup.get("threads"), processors_of_a_rank(case.evidence)
    spare = own - workers_of(case) if own is not None else 0  # each worker of a loader needs one, too
    if isinstance(threads, int) and threads < spare and setup.get("device", "cpu") == "cpu":
        return "threads", {"threads": threads, "processors": spare}
    if "float64" in str(setup.get("dtype", "")):
        return "precision", {"dtype": "float64"}
    most = max(spent, key=lambda name: spent[name])
    return (most if spent[most] > MOSTLY * sum(spent.values()) else ""), {}
