"""The verdict of a run: every finding, the primary one, and what could not be known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.analysis.diagnosis import grpo
from stepscope.analysis.diagnosis.composition import PASSES
from stepscope.analysis.diagnosis.ends import ends
from stepscope.analysis.diagnosis.learning import learning
from stepscope.analysis.diagnosis.machine import machine
from stepscope.analysis.diagnosis.progress import HELD_OUT
from stepscope.analysis.diagnosis.ranks import ranks
from stepscope.analysis.diagnosis.speed import case_of, speed
from stepscope.analysis.finding import CRITICAL, INFO, WARNING
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence
    from stepscope.analysis.finding import Finding

NONE = "none"
KINDS: dict[str, str] = {
    NONE: "no problem found",
    "input_bound": "steps wait for data",
    "copy_bound": "copies between devices take the time",
    "host_bound": "the program's own Python code, or launching tiny operations, takes the time",
    "compute_bound": "the run is limited by compute; not a problem",
    "communication_bound": "communication between ranks takes the time",
    "checkpoint_heavy": "checkpoints take too much of the time",
    "evaluation_heavy": "evaluation takes too much of the time",
    "compile_heavy": "the model is recompiled again and again",
    "logging_heavy": "logging and printing take too much of the time",
    "gc_pauses": "Python's garbage collector interrupts the steps",
    "periodic_stall": "at regular intervals a step takes far longer than usual",
    "straggler": "one rank or pipeline stage is slow, and the others wait for it",
    "cpu_throttled": "the container's CPU quota ran out",
    "gpu_throttled": "heat or power limits slow down a GPU",
    "swapping": "memory was swapped to disk while processes waited for it",
    "padding_waste": "batches consist mostly of padding",
    "gpu_idle": "a GPU is idle more than half of the time",
    "memory_leak": "memory keeps growing",
    "fragmentation": "GPU memory is fragmented and nearly full",
    "disk_full": "the run will fill its disk within two hours",
    "oom": "memory ran out",
    "divergence": "the loss rose and did not recover",
    "loss_spike": "the loss jumped",
    "plateau": "the loss has not fallen at all",
    "non_finite": "loss or gradients are NaN or infinite",
    "exploding_gradients": "the gradient norm left its usual range repeatedly, or broke the run",
    "vanishing_gradients": "one layer, or all layers, get almost no gradient",
    "dead_gradients": "gradients are exactly zero",
    "learning_rate": "the learning rate decays to nothing, jumps or oscillates",
    "overfitting": "the validation loss rises while the training loss falls",
    "dead_worker": "a data loader's worker process died",
    "hang": "the training stood still",
    "node_gone": "some ranks were taken away or left, and the others could not go on",
    "crash": "the run ended too early",
    **grpo.KINDS,
}
"""Every kind of finding and its meaning. The names are stable."""
SEVERITIES = {CRITICAL: 0, WARNING: 1, INFO: 2}
ENDED = (
    *("oom", "dead_worker", "node_gone", "learning_rate", "non_finite"),
    *("hang", "exploding_gradients", "divergence", "crash"),
)
"""Kinds that ended or ruined a run come first, in this order: later kinds often follow from earlier ones."""

HARMFUL = (
    *("memory_leak", "loss_spike", "exploding_gradients", "vanishing_gradients", "dead_gradients", "learning_rate"),
    *("overfitting", "fragmentation"),
    *(kind for kind in grpo.KINDS if kind != "reward_flat"),
)
"""What harms the result comes before what only costs time: a model that does not learn is not worth a faster step."""
LAST = ("plateau", "reward_flat", "gpu_idle")
"""What may be intended, or follows from other findings, comes last."""
FEWEST_STEPS, FEWEST_VALUES = 8, 40
"""Minimum steps to judge the speed, and values to judge a loss."""


def findings(evidence: Evidence) -> list[Finding]:
    """Return everything that was found, the primary finding first."""
    between = ranks(evidence)
    late = {one.rank for one in between if one.kind == "straggler"}
    others = replace(evidence, ranks=[steps for steps in evidence.ranks if steps.rank not in late])
    slow = [*between, *speed(others if others.ranks else evidence)]
    if between:  # what ranks spend in their backward pass is waiting or talking, and no computing
        slow = [one for one in slow if one.kind != "compute_bound"]
    policy = grpo.findings({name: tracks[min(tracks)].value for name, tracks in evidence.series.items() if tracks})
    found = [*ends(evidence), *learning(evidence), *policy, *machine(evidence), *slow]
    return sorted(found, key=_order)


def _order(finding: Finding) -> tuple[float, ...]:
    """Return the sort key: what ruined the run, severity, what harms the result, then cost in time."""
    ruined = finding.severity == CRITICAL and finding.kind in ENDED
    place = ENDED.index(finding.kind) if ruined else len(ENDED)
    group = 2 if finding.kind in LAST else 0 if finding.kind in HARMFUL else 1
    cost = finding.cost_seconds or 0.0
    return (place, SEVERITIES.get(finding.severity, 3), group, -cost, -(finding.confidence or 0.0))


def primary(found: list[Finding]) -> str:
    """Return the kind of the primary finding; `none` if there is none."""
    return found[0].kind if found else NONE


def summary(found: list[Finding], evidence: Evidence) -> str:
    """Return the verdict in one sentence."""
    if found:
        return found[0].text
    steps = evidence.leader
    if steps is None or not len(steps):
        return "no problem was found; no steps were recorded"
    case = case_of(evidence)
    passes = case.share(*PASSES) if case is not None else 0.0
    share = f"; {format_share(passes)} of the time is compute" if passes > 0 else ""
    return f"no problem was found in {steps.count} steps{share}"


def limited(finding: Finding, most: int = 40) -> Finding:
    """Return a finding whose evidence holds no long lists."""
    short = {key: value[:most] if isinstance(value, list) else value for key, value in finding.evidence.items()}
    return replace(finding, evidence=short)


def missing(evidence: Evidence) -> list[dict[str, str]]:
    """Return the missing signals: `signal`, `why` it matters, and `remedy`, how to record it next time."""
    found = (*_steps(evidence), *_losses(evidence), *_machine(evidence))
    return [{"signal": signal, "why": why, "remedy": remedy} for signal, why, remedy in found]


def _steps(evidence: Evidence) -> Iterator[tuple[str, str, str]]:
    steps = evidence.leader
    if steps is None or not len(steps):
        yield "step_seconds", "no steps were recorded: the speed is unknown", _how(evidence, "steps")
    elif steps.count < FEWEST_STEPS:
        yield "step_seconds", f"{steps.count} steps are too few to judge the speed", "let it run longer"
    elif not steps.phases:
        why = "the phases of the steps are unknown, and so is the reason why they are slow"
        yield "phase/*", why, _how(evidence, "phases")
    elif "forward" not in steps.phases and "other" in steps.phases:
        why = "no torch module was seen: host code and model cannot be separated"
        yield "phase/forward", why, "use run.phase('forward')"


def _losses(evidence: Evidence) -> Iterator[tuple[str, str, str]]:
    loss = evidence.track("loss")
    if loss is None:
        yield "loss", "divergence, spikes, plateaus and overfitting cannot be detected", _how(evidence, "loss")
        return
    if len(loss) < FEWEST_VALUES:
        yield "loss", f"{len(loss)} values are too few to judge the loss", "log it more often"
    if not any(name.endswith("loss") and HELD_OUT.search(name) for name in evidence.series):
        yield "evaluation/loss", "overfitting cannot be detected", "log the validation loss, as eval_loss"


def _machine(evidence: Evidence) -> Iterator[tuple[str, str, str]]:
    if not any(name.endswith("_bytes") and "memory" in name for name in evidence.series):
        yield "memory", "leaks cannot be seen", _how(evidence, "machine")
    if "cpu/usage_ratio" not in evidence.series:
        yield "machine", "quotas, swapping and busy neighbours cannot be detected", _how(evidence, "machine")
    if not evidence.is_on_cpu and not any(name.startswith("gpu/") for name in evidence.series):
        why = "no GPU was sampled: its utilization, clocks and memory are unknown"
        yield "gpu", why, "nothing to do if you train on the CPU"


def _how(evidence: Evidence, what: str) -> str:
    if evidence.foreign:
        return f"a {evidence.foreign} file does not contain it: record the next run with `stepscope run`"
    return {
        "steps": "run the script with `stepscope run`, or use run.step()",
        "phases": "run the script with `stepscope run`, or use run.watch() or run.phase()",
        "loss": "log it: run.log({'loss': loss})",
        "machine": "set samplers.enabled to true",
    }[what]
