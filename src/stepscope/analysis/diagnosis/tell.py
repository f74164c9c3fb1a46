"""Compose a finding about time: shares, durations, gains and confidence in one form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.analysis.finding import WARNING, Finding
from stepscope.core.numbers import format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.composition import Composition
    from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps

ENOUGH_STEPS = 30
"""Steps from which on their number no longer lowers the confidence."""
MACHINE_FORMULA = "expected step = step * (1 - share of the time)"
FORMULA = "expected step = (seconds of all steps - cost) / steps"


@dataclass(frozen=True)
class Case:
    """The rank that represents all ranks: its steps after warm-up, their composition, and all evidence."""

    steps: RankSteps
    made: Composition
    evidence: Evidence

    @property
    def total(self) -> float:
        """Return the seconds of all steps, as on a machine of its own."""
        return self.made.total

    @property
    def step(self) -> float:
        """Return the mean duration of a step in seconds, as on a machine of its own."""
        return self.made.total / max(1, self.steps.count)

    def spent(self, *phases: str) -> float:
        """Return the seconds of some phases."""
        return sum(self.made.spent.get(name, 0.0) for name in phases)

    def each(self, *phases: str) -> float:
        """Return the seconds of some phases in a step."""
        return self.spent(*phases) / max(1, self.steps.count)

    def share(self, *phases: str) -> float:
        """Return the share of some phases."""
        return self.spent(*phases) / self.total if self.total > 0 else 0.0


def confidence(share: float, threshold: float, steps: int) -> float:
    """Return how sure a finding is: half at its threshold, near 1 at three times that, less with few steps."""
    margin = 1 - 0.5 * math.exp(-1.6 * max(0.0, share / threshold - 1)) if threshold > 0 else 1.0
    return round(margin * min(1.0, 0.5 + 0.5 * steps / ENOUGH_STEPS), 2)


def time(seconds: float) -> str:
    """Return a duration for people: "84.2 ms"."""
    return format_value(seconds, "seconds")


def slow(
    kind: str,
    case: Case,
    cost: float,
    text: str,
    *,
    threshold: float,
    condition: str = "",
    cause: str = "",
    evidence: dict[str, Any] | None = None,
    severity: str = WARNING,
    **fields: object,
) -> Finding:
    """Return a finding about time: its cost in seconds is what the remedy would save."""
    steps = case.steps
    share = min(1.0, cost / case.total) if case.total > 0 else 0.0
    after = max(0.0, case.step - cost / max(1, steps.count))
    facts = {
        "share": share,
        "step_seconds": case.step,
        "expected_step_seconds": after,
        "steps": steps.count,
        "formula": FORMULA,
        "range": [int(steps.step[0]), int(steps.step[-1])] if len(steps) else None,
        **({"cause": cause} if cause else {}),
        **({"disturbed_seconds": case.made.disturbed} if case.made.disturbed > 0 else {}),
        **(evidence or {}),
    }
    gain = f"step {time(case.step)} → {time(after)}{f' {condition}' if condition else ''}"
    return Finding(
        kind,
        text,
        severity,
        remedy(kind, cause, **fields),
        facts,
        gain_ratio=share,
        confidence=confidence(share, threshold, steps.count),
        cost_seconds=cost,
        expected_gain=gain,
        rank=steps.rank,
    )


def machine_wide(
    kind: str, text: str, advice: str, steps: RankSteps, share: float, condition: str, facts: dict[str, Any]
) -> Finding:
    """Return a finding about a machine that makes every step longer, by a share of its time."""
    share = min(1.0, max(0.0, share))
    step = steps.total / max(1, steps.count)
    after = step * (1 - share)
    told = {**facts, "share": share, "step_seconds": step, "expected_step_seconds": after, "formula": MACHINE_FORMULA}
    return Finding(
        *(kind, text, WARNING, advice, told),
        gain_ratio=share,
        confidence=0.9,
        cost_seconds=share * steps.total,
        expected_gain=f"step {time(step)} → {time(after)} {condition}",
    )
