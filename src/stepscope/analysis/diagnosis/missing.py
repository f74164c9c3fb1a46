"""Missing signals of a run, and what they would have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analysis.diagnosis.progress import HELD_OUT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence

FEWEST_STEPS, FEWEST_VALUES = 8, 40


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
