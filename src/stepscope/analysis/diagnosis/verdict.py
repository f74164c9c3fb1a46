"""The verdict of a run: every finding, the primary one, and what could not be known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.analysis.diagnosis import grpo
from stepscope.analysis.diagnosis.composition import PASSES
from stepscope.analysis.diagnosis.ends import ends
from stepscope.analysis.diagnosis.learning import learning
from stepscope.analysis.diagnosis.machine import machine
from stepscope.analysis.diagnosis.ranks import ranks
from stepscope.analysis.diagnosis.speed import case_of, speed
from stepscope.analysis.finding import CRITICAL, INFO, WARNING
from stepscope.core.numbers import format_share

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.evidence import Evidence
    from stepscope.analysis.finding import Finding

NONE = "none"
SEVERITIES = {CRITICAL: 0, WARNING: 1, INFO: 2}
ENDED = ("oom", "dead_worker", "learning_rate", "non_finite", "hang", "exploding_gradients", "divergence", "crash")
"""Kinds that ended or ruined a run come first, in this order: later kinds often follow from earlier ones."""

HARMFUL = (
    *("memory_leak", "loss_spike", "exploding_gradients", "vanishing_gradients", "dead_gradients", "learning_rate"),
    *("overfitting", "fragmentation"),
    *(kind for kind in grpo.KINDS if kind != "reward_flat"),
)
"""What harms the result comes before what only costs time: a model that does not learn is not worth a faster step."""
LAST = ("plateau", "reward_flat", "gpu_idle")
"""What may be intended, or follows from other findings, comes last."""


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
