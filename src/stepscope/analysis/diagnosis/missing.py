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
    return [*_steps(evidence), *_losses(evidence), *_machine(evidence)]


def _steps(evidence: Evidence) -> Iterator[dict[str, str]]:
    steps = evidence.leader
    if steps is None or not len(steps):
        yield _one("step_seconds", "no steps were recorded: the speed is unknown", _how(evidence, "steps"))
    elif steps.count < FEWEST_STEPS:
        yield _one("step_seconds", f"{steps.count} steps are too few to judge the speed", "let it run longer")
    elif not steps.phases:
        why = "the phases of the steps are unknown, and so is the reason why they are slow"
        yield _one("phase/*", why, _how(evidence, "phases"))
    elif "forward" not in steps.phases and "other" in steps.phases:
        why = "no torch module was seen: host code and model cannot be separated"
        yield _one("phase/forward", why, "use run.phase('forward')")


def _losses(evidence: Evidence) -> Iterator[dict[str, str]]:
    loss = evidence.track("loss")
    if loss is None:
        why = "divergence, spikes, plateaus and overfitting cannot be detected"
        yield _one("loss", why, _how(evidence, "loss"))
        return
    if len(loss) < FEWEST_VALUES:
        yield _one("loss", f"{len(loss)} values are too few to judge the loss", "log it more often")
    if not any(name.endswith("loss") and HELD_OUT.search(name) for name in evidence.series):
        yield _one("evaluation/loss", "overfitting cannot be detected", "log the validation loss, as eval_loss")


def _machine(evidence: Evidence) -> Iterator[dict[str, str]]:
    known = any(name.endswith("_bytes") and "memory" in name for name in evidence.series)
    if not known:
        yield _one("memory", "leaks cannot be seen", _how(evidence, "machine"))
    if "cpu/usage_ratio" not in evidence.series:
        yield _one("machine", "quotas, swapping and busy neighbours cannot be detected", _how(evidence, "machine"))
    on_processors = any(one.get("device") == "cpu" for one in evidence.of_kind("torch_setup"))
    if not on_processors and not any(name.startswith("gpu/") for name in evidence.series):
        why = "no GPU was sampled: its utilization, clocks and memory are unknown"
        yield _one("gpu", why, "nothing to do if you train on the CPU")


def _one(signal: str, why: str, remedy: str) -> dict[str, str]:
    return {"signal": signal, "why": why, "remedy": remedy}


def _how(evidence: Evidence, what: str) -> str:
    if evidence.foreign:
        return f"a {evidence.foreign} file does not contain it: record the next run with `stepscope run`"
    return {
        "steps": "run the script with `stepscope run`, or use run.step()",
        "phases": "run the script with `stepscope run`, or use run.watch() or run.phase()",
        "loss": "log it: run.log({'loss': loss})",
        "machine": "set samplers.enabled to true",
    }[what]
