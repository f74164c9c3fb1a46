"""The result of an analysis, in the one form that page, terminal, reports, alerts and command line show."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

INFO, WARNING, CRITICAL = "info", "warning", "critical"


class WithFacts:
    """Base of dataclasses that return their fields as plain values."""

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]


@dataclass(frozen=True)
class Finding(WithFacts):
    """One problem or fact: kind, severity, evidence, remedy and expected gain."""

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
    """Largest share of the time that the remedy would save; None if unknown."""
    confidence: float | None = None
    """Confidence, 0 to 1; None if not estimated."""
    cost_seconds: float | None = None
    """Seconds of the run that it has cost; None if it costs no time, or if unknown."""
    expected_gain: str = ""
    """Expected gain of the remedy in words, with its numbers: "step 212 -> 84 ms if loading keeps up"."""
    rank: int | None = None
    """The affected rank; None for all ranks."""
