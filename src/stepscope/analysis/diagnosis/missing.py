"""What could not be known: signals that a run does not have, and what they would have told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analysis.diagnosis.progress import HELD_OUT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.analysis.diagnosis.evidence import Evidence

FEWEST_STEPS, FEWEST_VALUES = 8, 40


def missing(evidence: Evidence) -> list[dict[str, str]]:
    """Return what is missing: `signal`, `why` it matters, and `remedy`: how to have it next time."""
    return [*_steps(evidence), *_losses(evidence), *_machine(evidence)]


def _steps(evidence: Evidence) -> Iterator[dict[str, str]]:
    steps = evidence.leader
    if steps is None or not len(steps):
        yield _one("step_seconds", "no step is known: nothing can be said of the speed", _how(evidence, "steps"))
    elif steps.count < FEWEST_STEPS:
        yield _one("step_seconds", f"{steps.count} steps are too few to judge the speed", "let it run longer")
    elif not steps.phases:
        why = "the phases of the steps are unknown: why they are slow cannot be told"
        yield _one("phase/*", why, _how(evidence, "phases"))
    elif "forward" not in steps.phases and "other" in steps.phases:
        why = "no module of torch was seen to compute: host and model cannot be told apart"
        yield _one("phase/forward", why, "use run.phase('forward')")


def _losses(evidence: Evidence) -> Iterator[dict[str, str]]:
    loss = evidence.track("loss")
    if loss is None:
        why = "divergence, spikes, plateaus and overfitting cannot be seen"
        yield _one("loss", why, _how(evidence, "loss"))
        return
    if len(loss) < FEWEST_VALUES:
        yield _one("loss", f"{len(loss)} values are too few to judge its course", "log it more often")
    if not any(name.endswith("loss") and HELD_OUT.search(name) for name in evidence.series):
        yield _one("evaluation/loss", "overfitting cannot be seen", "log the loss on held-out data, as eval_loss")


def _machine(evidence: Evidence) -> Iterator[dict[str, str]]:
    known = any(name.endswith("_bytes") and "memory" in name for name in evidence.series)
    if not known:
        yield _one("memory", "leaks cannot be seen", _how(evidence, "machine"))
    if "cpu/usage_ratio" not in evidence.series:
        yield _one("machine", "quotas, swap and busy neighbours cannot be seen", _how(evidence, "machine"))
    on_processors = any(one.get("device") == "cpu" for one in evidence.of_kind("torch_setup"))
    if not on_processors and not any(name.startswith("gpu/") for name in evidence.series):
        why = "no GPU was sampled: its use, clocks and memory are unknown"
        yield _one("gpu", why, "none is needed for a training on processors")


def _one(signal: str, why: str, remedy: str) -> dict[str, str]:
    return {"signal": signal, "why": why, "remedy": remedy}


def _how(evidence: Evidence, what: str) -> str:
    if evidence.foreign:
        return f"a {evidence.foreign} file does not hold it: record the next run with `stepscope run`"
    return {
        "steps": "run the script with `stepscope run`, or use run.step()",
        "phases": "run the script with `stepscope run`, or use run.watch() or run.phase()",
        "loss": "log it: run.log({'loss': loss})",
        "machine": "let samplers.enabled be true",
    }[what]
