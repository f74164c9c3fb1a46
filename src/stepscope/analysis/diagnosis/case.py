"""The rank that represents a run, and findings about its time: share, cost, expected gain and confidence."""

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

MOST_SURE = 0.99
"""No finding is certain."""
ENOUGH_STEPS = 30
"""With fewer steps the confidence is lower."""
MACHINE_FORMULA = "expected step = step * (1 - share of the time)"
FORMULA = "expected step = (seconds of all steps - cost) / steps"


@dataclass(frozen=True)
class Case:
    """The rank that represents all ranks: its steps after warm-up, their composition, and all evidence.

    Durations are as they would be on an otherwise idle machine.
    """

    steps: RankSteps
    made: Composition
    evidence: Evidence

    @property
    def total(self) -> float:
        """Return the seconds of all steps."""
        return self.made.total

    @property
    def step(self) -> float:
        """Return the mean duration of a step in seconds."""
        return self.made.total / max(1, self.steps.count)

    def spent(self, *phases: str) -> float:
        """Return the seconds of some phases in all steps: at most all of them, also if a log says otherwise."""
        return min(self.total, sum(self.made.spent.get(name, 0.0) for name in phases))

    def each(self, *phases: str) -> float:
        """Return the mean seconds of some phases in a step."""
        return self.spent(*phases) / max(1, self.steps.count)

    def share(self, *phases: str) -> float:
        """Return the share of some phases in the time of all steps."""
        return self.spent(*phases) / self.total if self.total > 0 else 0.0

    def slow(
        self,
        kind: str,
        cost: float,
        text: str,
        facts: dict[str, Any],
        *,
        threshold: float,
        condition: str = "",
        cause: str = "",
        **fields: object,
    ) -> Finding:
        """Return a finding about lost time.

        The remedy would save `cost` seconds, under a `condition` such as "if loading keeps up". A finding needs a share
        of the time of at least `threshold`. `cause` chooses the remedy, and `fields` are the values in its text.
        """
        steps = self.steps
        share = min(1.0, cost / self.total) if self.total > 0 else 0.0
        after = max(0.0, self.step - cost / max(1, steps.count))
        evidence = {
            "share": share,
            "step_seconds": self.step,
            "expected_step_seconds": after,
            "steps": steps.count,
            "formula": FORMULA,
            "range": [int(steps.step[0]), int(steps.step[-1])] if len(steps) else None,
            **({"cause": cause} if cause else {}),
            **({"disturbed_seconds": self.made.disturbed} if self.made.disturbed > 0 else {}),
            **facts,
        }
        return Finding(
            *(kind, text, WARNING, remedy(kind, cause, **fields), evidence),
            gain_ratio=share,
            confidence=confidence(share, threshold, steps.count),
            cost_seconds=cost,
            expected_gain=f"step {time(self.step)} → {time(after)}{f' {condition}' if condition else ''}",
            rank=steps.rank,
        )


def confidence(share: float, threshold: float, steps: int) -> float:
    """Return how sure a finding is: half at its threshold, near 1 at three times that, less with few steps."""
    margin = 1 - 0.5 * math.exp(-1.6 * max(0.0, share / threshold - 1)) if threshold > 0 else 1.0
    return round(min(MOST_SURE, margin * min(1.0, 0.5 + 0.5 * steps / ENOUGH_STEPS)), 2)


def time(seconds: float) -> str:
    """Return a duration for people: "84.2 ms"."""
    return format_value(seconds, "seconds")


def machine_wide(
    kind: str, text: str, advice: str, steps: RankSteps, share: float, condition: str, facts: dict[str, Any]
) -> Finding:
    """Return a finding about a machine that makes every step longer by a share of its time."""
    share = min(1.0, max(0.0, share))
    step = steps.total / max(1, steps.count)
    after = step * (1 - share)
    facts = {**facts, "share": share, "step_seconds": step, "expected_step_seconds": after, "formula": MACHINE_FORMULA}
    return Finding(
        *(kind, text, WARNING, advice, facts),
        gain_ratio=share,
        confidence=0.9,
        cost_seconds=share * steps.total,
        expected_gain=f"step {time(step)} → {time(after)} {condition}",
    )
