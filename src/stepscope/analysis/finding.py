"""What an analysis has found, in the one form that page, terminal, reports, alerts and command line show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

INFO, WARNING, CRITICAL = "info", "warning", "critical"


@dataclass(frozen=True)
class Finding:
    """One finding: what, how bad, the evidence, what to do about it, and what that would bring."""

    kind: str
    """A short, stable name: `spike`, `change_point`, `leak`, `input_bound`."""
    text: str
    """One sentence for a person, with its numbers and units."""
    severity: str = INFO
    """info, warning or critical."""
    remedy: str = ""
    """What to do; empty if there is nothing to do."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """The numbers behind it, in base units, as plain values that JSON can hold."""
    gain_ratio: float | None = None
    """Share of the time that the remedy would save at most; None if that cannot be determined."""
    confidence: float | None = None
    """How sure it is, 0 to 1; None if nobody judged that."""
    cost_seconds: float | None = None
    """Seconds of the run that it has cost; None if it costs none, or that cannot be determined."""
    expected_gain: str = ""
    """What the remedy would bring, in words with the formula's numbers: "step 212 -> 84 ms if loading keeps up"."""
    rank: int | None = None
    """The rank that it is about; None if it is about all."""

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "kind": self.kind,
            "text": self.text,
            "severity": self.severity,
            "remedy": self.remedy,
            "evidence": self.evidence,
            "gain_ratio": self.gain_ratio,
            "confidence": self.confidence,
            "cost_seconds": self.cost_seconds,
            "expected_gain": self.expected_gain,
            "rank": self.rank,
        }
