"""Findings about speed: time lost to data, copies, the host, checkpoints, evaluation and more.

The seconds of every phase over all steps are compared with the seconds of all steps. Stalls that come at regular
intervals are separated first and removed: an occasionally slow step has another cause than a step that is always slow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.composition import CALM, FLOOR, PASSES, SURE, composition, settled
from stepscope.analysis.diagnosis.inputs import input_bound, processors_of_a_rank, workers_of
from stepscope.analysis.diagnosis.stalls import stalls
from stepscope.analysis.diagnosis.tell import Case, confidence, slow, time
from stepscope.analysis.finding import INFO
from stepscope.core.numbers import format_share, format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.analysis.diagnosis.evidence import Evidence
    from stepscope.analysis.finding import Finding

FEWEST = 8
"""Fewest steps to judge the speed."""
SHARES = {
    "data": 0.25,
    "copy": 0.2,
    "other": 0.3,
    "checkpoint": 0.2,
    "evaluation": 0.33,
    "logging": 0.15,
    "gc": 0.1,
}
"""Share of the time of all steps from which on a phase is a finding. A loop that is well made has 1 to 15 % of data
(collating in the trainer), up to 28 % of evaluation where the held-out set is as large as the training set, and a few
per cent of the others; a cause that is worth its remedy is well beyond that."""
STRETCHES = {
    "data": ("input_bound", "waiting for data"),
    "copy": ("copy_bound", "copying between devices"),
    "other": ("host_bound", "the program's own Python"),
    "logging": ("logging_heavy", "logging"),
    "communication": ("communication_bound", "talking to other ranks"),
}
"""Phases that may be slow for a span of steps: the kind of finding, and its words."""
LEAST_STRETCH = 0.05
"""Share of the time that such spans must have cost."""
COMPUTING, HEAVY = 0.8, 0.02
"""Share of passes and optimizer from which on a run computes and does little else; and the seconds that a step must
compute even where nothing disturbs it for that to be worth a word."""
BUSY_GPU = 0.7
"""Utilisation of the GPUs from which on a run with GPUs can be compute-bound."""
PADDED = 0.6
"""Share of padding from which on it is a finding: batches of even lengths from 1 to n, put together by chance, have up
to one half."""
MANY_OPERATIONS, TINY, FUSED = 1000, 25e-6, 0.2
"""Operations of a step from which on they are too many; seconds that each of its graph takes there and back: torch
needs 5 to 20 µs to launch one and go back through it. And what a fifth of them would take."""
PER_TENSOR, TINY_UPDATE = 10, 150e-6
"""Operations of an optimizer that goes tensor by tensor for each of them, about; and the seconds for one tensor that
are their launch."""
MOSTLY = 0.6
STEEP = 1.5
"""Power by which the floor of the program's own time falls as its share grows: 3 ms at 30 %, 1.1 at 60 %, 0.7 at 80 %.
A loop around a tiny model that does nothing else has 0.6 ms at 66 % on a busy machine, and 0.2 on a quiet one."""
LEAST_RECOMPILES, RECOMPILE_SHARE = 3, 0.15
"""Compilations after the first of their code, and their share of the time, that are a finding: the first ones of a run
are its warm-up, however long they take."""


def speed(evidence: Evidence) -> Iterator[Finding]:
    """Yield what makes the steps of the leading rank slow."""
    case = case_of(evidence)
    if case is None:
        return
    periodic, excess = stalls(case)
    yield from periodic
    case = replace(case, made=case.made.without(excess))
    late = [one for name in case.made.stretches for one in _stretch(case, name)]
    yield from late
    # What is left of these phases: the steps outside of their spans may be slow as well.
    case = replace(case, made=case.made.without({str(one.evidence["phase"]): one.cost_seconds or 0.0 for one in late}))
    waiting = input_bound(case, SHARES["data"]) if _reaches(case, "data") else None
    if waiting is not None:
        yield waiting
    yield from _copy(case)
    yield from _host(case)
    yield from _rare(case, "checkpoint_heavy", "checkpoint", "saving checkpoints")
    yield from _rare(case, "evaluation_heavy", "evaluation", "evaluation")
    yield from _logging(case)
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


def _stretch(case: Case, phase: str) -> Iterator[Finding]:
    """Yield that a phase took several times as long for many steps in a row."""
    found = case.made.stretches[phase]
    share = found.seconds / case.total if case.total > 0 else 0.0
    if share < LEAST_STRETCH or found.during < FLOOR:
        return
    kind, what = STRETCHES[phase]
    more = f" (and in {found.others} more interval{'s' if found.others > 1 else ''})" if found.others else ""
    text = f"from step {found.first} to {found.last}{more} {what} took {time(found.during)} per step, elsewhere "
    text += f"{time(found.before)}: {format_share(share)} of the time of all steps"
    facts = {"phase": phase, "phase_seconds": case.spent(phase), "during_seconds": found.during}
    facts |= {"elsewhere_seconds": found.before, "range": [found.first, found.last], "stretches": found.others + 1}
    yield slow(
        *(kind, case, found.seconds, text),
        threshold=LEAST_STRETCH,
        condition="on average, if these steps become as fast as the others",
        cause="stretch",
        evidence=facts,
        first=found.first,
        last=found.last,
    )


def _reaches(case: Case, phase: str) -> bool:
    """Return whether a phase of every step takes enough to matter."""
    share = case.share(phase)
    if share < SHARES[phase]:
        return False
    floor = FLOOR / 2 if share >= SURE else FLOOR
    if phase == "other":  # of a fast step next to nothing else is left if the program reads every sample
        floor = FLOOR * (SHARES[phase] / share) ** STEEP
    return case.each(phase) >= floor


def _copy(case: Case) -> Iterator[Finding]:
    device = _copied(case) * case.steps.count
    if device > case.spent("copy"):
        case = replace(case, made=replace(case.made, spent={**case.made.spent, "copy": device}))
    if _reaches(case, "copy"):
        text = f"{format_share(case.share('copy'))} of the time is spent on device copies: "
        text += f"{time(case.each('copy'))} per step"
        yield _plain("copy_bound", case, "copy", text, "if copies overlap with compute")


def _copied(case: Case) -> float:
    """Return the seconds of copies in a step by the device's clock that no computing of the device hides."""
    copies, *passes = (case.evidence.mean(f"device/{name}_seconds") or 0.0 for name in ("copy", *PASSES))
    hidden = max(0.0, copies + sum(passes) - case.step)  # together they take longer than the step: at the same time
    return max(0.0, copies - hidden)


def _plain(kind: str, case: Case, phase: str, text: str, condition: str) -> Finding:
    facts = {"phase": phase, "phase_seconds": case.spent(phase)}
    threshold = SHARES[phase]
    return slow(kind, case, case.spent(phase), text, threshold=threshold, condition=condition, evidence=facts)


def _host(case: Case) -> Iterator[Finding]:
    if not _reaches(case, "other") or "forward" not in case.steps.phases:
        return
    text = f"{format_share(case.share('other'))} of the time is the program's own code, "
    text += "outside data, passes and optimizer: "
    text += f"{time(case.each('other'))} of a step of {time(case.step)}"
    yield _plain("host_bound", case, "other", text, "without it")


def _rare(case: Case, kind: str, phase: str, what: str) -> Iterator[Finding]:
    """Yield what happens occasionally and takes too much in all."""
    share, total = case.share(phase), case.spent(phase)
    if share < SHARES[phase]:
        return
    happened = max(1, int((case.steps.phase(phase) > 0).sum()))
    cost = total * (1 - 1 / happened) if happened > 1 else total
    every = case.steps.count / happened
    text = f"{format_share(share)} of the time is spent on {what}: "
    text += (
        f"{happened} times {time(total / happened)}, every {every:.0f} steps" if happened > 1 else f"once {time(total)}"
    )
    facts = {"phase": phase, "phase_seconds": total, "times": happened, "every_steps": every}
    condition = "if it happens once" if happened > 1 else "without it"
    yield slow(kind, case, cost, text, threshold=SHARES[phase], condition=condition, evidence=facts)


def _logging(case: Case) -> Iterator[Finding]:
    if _reaches(case, "logging"):
        text = f"{format_share(case.share('logging'))} of the time is spent on logging and printing: "
        text += f"{time(case.each('logging'))} of a step of {time(case.step)}"
        yield _plain("logging_heavy", case, "logging", text, "without it")


def _garbage(case: Case) -> Iterator[Finding]:
    if case.share("gc") < SHARES["gc"] or case.each("gc") < FLOOR / 2:
        return
    pauses = case.steps.phase("gc")
    some = pauses[pauses > 0]
    text = f"{format_share(case.share('gc'))} of the time is spent on garbage collection: {len(some)} "
    each = case.spent("gc") / case.steps.count * len(pauses) / max(1, len(some))  # as long as in the share
    text += f"pause{'s' if len(some) > 1 else ''} of {time(each)}"
    yield _plain("gc_pauses", case, "gc", text, "without them")


def _compile(case: Case) -> Iterator[Finding]:
    """Yield compilations that come again: those of the first steps are the price of a compiled model."""
    events = [one for one in case.evidence.of_kind("compile") if one.get("rank", 0) == case.steps.rank]
    again = [one for one in events if one.get("recompiled")]
    # On a busy machine what is sure of them: compiling was made longer at most as the passes were.
    cost = sum(float(one.get("seconds") or 0.0) for one in again) / case.made.slowed
    whole = case.total + sum(float(one.get("seconds") or 0.0) for one in events) / case.made.slowed
    if len(again) < LEAST_RECOMPILES or cost / whole < RECOMPILE_SHARE:
        return
    text = f"{format_share(cost / whole)} of the time is spent on recompilation: "
    text += f"{len(again)} times, {time(cost / len(again))} each"
    facts = {"phase": "compile", "phase_seconds": cost, "recompilations": len(again)}
    wide = replace(case, made=replace(case.made, total=whole))
    yield slow(
        *("compile_heavy", wide, cost, text),
        threshold=RECOMPILE_SHARE,
        condition="once it is compiled",
        evidence=facts,
    )


def _padding(case: Case) -> Iterator[Finding]:
    share = case.evidence.mean("padding_ratio")
    if share is None or share < PADDED:
        return
    cost = share * case.spent("forward", "backward")
    text = f"{format_share(share)} of the tokens in a batch are padding: that share of the passes is wasted"
    facts = {"padding_ratio": share, "passes_seconds": case.spent("forward", "backward")}
    found = slow(
        *("padding_waste", case, cost, text),
        threshold=PADDED,
        condition="if batches contain no padding",
        evidence=facts,
    )
    yield replace(found, confidence=confidence(share, PADDED, case.steps.count))


def _small(case: Case) -> Iterator[Finding]:
    """Yield that a step is made of so many tiny operations that launching them is what takes the time."""
    nodes = max((_whole(one, "nodes") for one in case.evidence.of_kind("graph")), default=0)
    setups = [one for one in case.evidence.of_kind("optimizer_setup") if one.get("one_by_one") is True]
    tensors = max((_whole(one, "tensors") for one in setups), default=0)
    passes, update = case.each("forward", "backward"), case.each("optimizer")
    tiny = {
        "forward and backward": nodes > 0 and 0 < passes <= TINY * nodes,
        "optimizer": tensors > 0 and 0 < update <= TINY_UPDATE * tensors,
    }
    seconds = passes * tiny["forward and backward"] + update * tiny["optimizer"]
    operations = nodes * tiny["forward and backward"] + PER_TENSOR * tensors * tiny["optimizer"]
    if operations < MANY_OPERATIONS or seconds < max(FLOOR, MOSTLY * case.step) or _gpu_is_busy(case.evidence):
        return
    parts = [f"{nodes} operations in the passes, {time(passes / nodes)} each"] if tiny["forward and backward"] else []
    if tiny["optimizer"]:
        parts.append(f"{tensors} tensors that the optimizer updates one by one, {time(update / tensors)} each")
    text = f"{format_share(seconds / case.step)} of the time is spent launching tiny operations: {' and '.join(parts)}"
    updates = update * tiny["optimizer"] > seconds / 2
    facts = {"operations": operations, "tensors": tensors, "phase": "optimizer" if updates else "forward"}
    found = slow(
        *("host_bound", case, (1 - FUSED) * seconds * case.steps.count, text),
        threshold=MOSTLY,
        condition=f"if they are {1 / FUSED:.0f} times fewer",
        cause="small_updates" if updates else "small_operations",
        evidence={**facts, "seconds_each": seconds / operations},
        operations=nodes,
        each=time(passes / max(1, nodes)),
        tensors=tensors,
    )
    yield replace(found, confidence=0.7)


def _whole(event: Mapping[str, object], key: str) -> int:
    """Return a whole number of an event; 0 if it has none."""
    value = event.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _gpu_is_busy(evidence: Evidence) -> bool:
    """Return whether the GPUs have work nearly all the time: what the host takes is hidden behind it."""
    used = evidence.mean("gpu/mean_utilization_ratio") or evidence.mean("gpu/0/utilization_ratio")
    return used is not None and used >= BUSY_GPU


def _compute(case: Case) -> Iterator[Finding]:
    """Yield that a run computes, if it does and little else: no fault, but what remains to be made faster."""
    share = case.share(*PASSES)
    if share < COMPUTING:
        return
    least = sum(float(np.quantile(case.steps.phase(name), CALM)) for name in PASSES)
    used = case.evidence.mean("gpu/mean_utilization_ratio") or case.evidence.mean("gpu/0/utilization_ratio")
    if least < HEAVY or (used is not None and used < BUSY_GPU):  # a host that queues work for a GPU computes nothing
        return
    spent = {name: case.spent(name) for name in PASSES}
    parts = ", ".join(f"{name} {format_share(case.share(name))}" for name in PASSES)
    text = f"{format_share(share)} of the time is compute ({parts}): the model itself takes {time(case.step)} per step"
    cause, fields = _remaining(case, spent)
    mfu = case.evidence.mean("mfu_ratio")
    if mfu is not None:
        text += f"; it reaches {format_value(mfu, 'ratio')} of the peak (MFU)"
    facts = {"passes": spent, "least_seconds": least, "mfu_ratio": mfu, **fields}
    found = slow("compute_bound", case, 0.0, text, threshold=COMPUTING, evidence=facts, severity=INFO)
    advice = remedy("compute_bound", cause, **fields)
    sure = confidence(share, COMPUTING, case.steps.count)
    yield replace(found, remedy=advice, gain_ratio=None, cost_seconds=None, expected_gain="", confidence=sure)


def _remaining(case: Case, spent: dict[str, float]) -> tuple[str, dict[str, object]]:
    """Return what can still be made faster: unused processors, too much precision, or the pass that takes the most."""
    setup = next(iter(case.evidence.of_kind("torch_setup")), {})
    threads, own = setup.get("threads"), processors_of_a_rank(case.evidence)
    spare = own - workers_of(case) if own is not None else 0  # each worker of a loader needs one, too
    if isinstance(threads, int) and threads < spare and setup.get("device", "cpu") == "cpu":
        return "threads", {"threads": threads, "processors": spare}
    if "float64" in str(setup.get("dtype", "")):
        return "precision", {"dtype": "float64"}
    most = max(spent, key=lambda name: spent[name])
    return (most if spent[most] > MOSTLY * sum(spent.values()) else ""), {}
