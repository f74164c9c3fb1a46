"""Gates: how much worse a quantity may get before a change is stopped. Targets: values that a run should reach.

A gate `step_seconds +3%` fails if the runs are slower for certain *and* a rise of 3 % cannot be ruled out: the interval
lies above 0 and reaches 3 %. So equal runs fail in 2.5 % of cases with 95 % intervals, and once the runs are long or
many enough, a rise of 3 % or more passes no more often. A rise that is certain, but certainly below 3 %, passes. If the
interval contains both 0 and 3 %, the gate passes *undecided* and says how many runs would decide; `strict` lets it
fail.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.analysis.compare.difference import (
    CONFIDENCE,
    NOT_COMPARABLE,
    Difference,
    one_more_run,
    runs_needed,
    t_quantile,
)
from stepscope.analysis.compare.quantity import RATE, TIME, Spec, kind_of
from stepscope.analysis.finding import WithFacts
from stepscope.core.numbers import format_change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analysis.compare.level import Level

MOST_REPEATS = 100
"""Maximum runs of each to recommend."""
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
        """Parse a gate. Raises ValueError with the cause."""
        match = _GATE.fullmatch(text)
        if match is None:
            raise ValueError("not a metric and how much worse it may get, as in 'step_seconds +3%' or 'loss@1000 +1%'")
        spec = Spec.parse(match["spec"])
        lower = kind_of(spec.name).lower_is_better
        if not match["sign"] and lower is None:
            raise ValueError("it is unknown which direction is worse; write + or -, as in 'norm +5%'")
        rises = match["sign"] == "+" if match["sign"] else lower is True
        return cls(spec, float(match["limit"]) / 100, rises)

    @property
    def text(self) -> str:
        """The gate as people write it."""
        return f"{self.spec.text} {'+' if self.rises else '-'}{self.limit * 100:g}%"


@dataclass(frozen=True)
class Judgement(WithFacts):
    """The result of a gate."""

    gate: str
    result: str
    """passed, failed, undecided or not judged."""
    why: str

    def stops(self, *, strict: bool = False) -> bool:
        """Return whether it stops a change: failed and not judged always do, undecided only if strict."""
        return self.result in {FAILED, NOT_JUDGED} or (strict and self.result == UNDECIDED)


def judge(gate: Gate, found: Difference) -> Judgement:
    """Compare a difference with a gate."""
    if found.verdict == NOT_COMPARABLE or found.low is None or found.high is None or found.ratio is None:
        return Judgement(gate.text, NOT_JUDGED, found.why)
    low, high = (found.low, found.high) if gate.rises else (-found.high, -found.low)
    change = f"{format_change(found.ratio)} [{format_change(found.low)}, {format_change(found.high)}]"
    limit = f"{'+' if gate.rises else '-'}{gate.limit * 100:g} %"
    if low > 0 and high >= gate.limit:
        certain = "is beyond" if low > gate.limit else "is worse for certain and may be as much as"
        return Judgement(gate.text, FAILED, f"{change} {certain} {limit}")
    if high < gate.limit or high <= 0:
        return Judgement(gate.text, PASSED, f"{change} is within {limit}")
    return Judgement(gate.text, UNDECIDED, f"{change} holds both 0 and {limit}{_advice(gate, found)}")


def _advice(gate: Gate, found: Difference) -> str:
    needed = runs_needed(found, gate.limit)
    if needed and needed > MOST_REPEATS:
        if kind_of(gate.spec.name) in {TIME, RATE}:
            return "; the machine is too noisy for this limit: repeat both in turn (A B A B), or on a quieter one"
        return "; equal runs differ too much for this limit: take a wider one, or repeat both many times"
    if needed and needed > min(found.runs):
        return f"; about {needed} runs of each would tell, best in turn (A B A B)"
    return ""


MET, MISSED, CLOSE, UNKNOWN = "met", "missed", "too close to tell", "not measured"


@dataclass(frozen=True)
class Aim(WithFacts):
    """A target, and the value that the runs reach."""

    quantity: str
    target: float
    result: str
    """met, missed, too close to tell or not measured."""
    value: float | None = None
    over: float | None = None
    """value / target - 1."""


def aim(quantity: str, target: float, levels: Sequence[Level], confidence: float = CONFIDENCE) -> Aim:
    """Compare the level of some runs of one program with a target: at most, or at least where more is better."""
    if not levels or not all(math.isfinite(level.value) for level in levels):
        return Aim(quantity, target, UNKNOWN)
    kind = kind_of(quantity.partition("@")[0])
    value, deviation, freedom = one_more_run(levels, kind)
    reach = t_quantile(confidence, freedom) * deviation / math.sqrt(len(levels))
    distance = value - target if kind.lower_is_better is not False else target - value
    result = CLOSE if abs(distance) <= reach else MISSED if distance > 0 else MET
    return Aim(quantity, target, result, value, value / target - 1 if target else None)
