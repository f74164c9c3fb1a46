"""Gates: how much worse a quantity may get before a change is stopped.

A gate `step_seconds +3%` fails if the runs are slower for certain *and* a rise of 3 % cannot be ruled out: the interval
lies above 0 and reaches 3 %. So equal runs fail as often as half of what the interval leaves (2.5 % at 95 %), a rise
of 3 % or more is let through no more often once the runs are long or many enough, and a rise that is certain but
certainly below 3 % passes. Where the interval holds both 0 and 3 % the runs cannot tell: the gate passes *undecided*,
says so, and how many runs would tell; `strict` lets it fail.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from stepscope.analysis.compare.difference import NOT_COMPARABLE, Difference, runs_needed
from stepscope.analysis.compare.quantity import RATE, TIME, Spec, kind_of
from stepscope.core.numbers import format_change

MOST_REPEATS = 100
"""Runs of each that somebody might make; to ask for more is no advice."""
PASSED, FAILED, UNDECIDED, NOT_JUDGED = "passed", "failed", "undecided", "not judged"
_GATE = re.compile(r"\s*(?P<spec>\S+)\s+(?P<sign>[+-]?)(?P<limit>\d{1,6}(?:\.\d{1,9})?)\s*%\s*", re.ASCII)


@dataclass(frozen=True)
class Gate:
    """One gate."""

    spec: Spec
    limit: float
    """Ratio by which it may get worse, 0 or more."""
    rises: bool
    """Whether worse means that the value rises."""

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Read what a person wrote. Raises ValueError with what is wrong."""
        match = _GATE.fullmatch(text)
        if match is None:
            raise ValueError("not a metric and how much worse it may get, as in 'step_seconds +3%' or 'loss@1000 +1%'")
        spec = Spec.parse(match["spec"])
        lower = kind_of(spec.name).lower_is_better
        if not match["sign"] and lower is None:
            raise ValueError("nobody knows which way is worse; say + or -, as in 'norm +5%'")
        rises = match["sign"] == "+" if match["sign"] else lower is True
        return cls(spec, float(match["limit"]) / 100, rises)

    @property
    def text(self) -> str:
        """The gate as people write it."""
        return f"{self.spec.text} {'+' if self.rises else '-'}{self.limit * 100:g}%"


@dataclass(frozen=True)
class Judgement:
    """What a gate says."""

    gate: str
    result: str
    """passed, failed, undecided or not judged."""
    why: str

    def stops(self, *, strict: bool = False) -> bool:
        """Return whether it stops a change: failed and not judged always do, undecided if asked for."""
        return self.result in {FAILED, NOT_JUDGED} or (strict and self.result == UNDECIDED)

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {"gate": self.gate, "result": self.result, "why": self.why}


def judge(gate: Gate, found: Difference) -> Judgement:
    """Compare a difference with a gate."""
    if found.verdict == NOT_COMPARABLE or found.low is None or found.high is None or found.ratio is None:
        return Judgement(gate.text, NOT_JUDGED, found.why)
    low, high = (found.low, found.high) if gate.rises else (-found.high, -found.low)
    told = f"{format_change(found.ratio)} [{format_change(found.low)}, {format_change(found.high)}]"
    limit = f"{'+' if gate.rises else '-'}{gate.limit * 100:g} %"
    if low > 0 and high >= gate.limit:
        certain = "is beyond" if low > gate.limit else "is worse for certain and may be as much as"
        return Judgement(gate.text, FAILED, f"{told} {certain} {limit}")
    if high < gate.limit or high <= 0:
        return Judgement(gate.text, PASSED, f"{told} is within {limit}")
    return Judgement(gate.text, UNDECIDED, f"{told} holds both 0 and {limit}{_advice(gate, found)}")


def _advice(gate: Gate, found: Difference) -> str:
    """Say what would let the runs tell."""
    needed = runs_needed(found, gate.limit)
    if needed and needed > MOST_REPEATS:
        if kind_of(gate.spec.name) in {TIME, RATE}:
            return "; the machine is too noisy for this limit: repeat both in turn (A B A B), or on a quieter one"
        return "; equal runs differ too much for this limit: take a wider one, or repeat both many times"
    if needed and needed > min(found.runs):
        return f"; about {needed} runs of each would tell, best in turn (A B A B)"
    return ""
