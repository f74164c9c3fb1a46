"""Targets: figures that somebody wants a run to reach, and whether it does."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stepscope.analysis.compare.difference import CONFIDENCE, one_more_run, t_quantile
from stepscope.analysis.compare.quantity import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analysis.compare.level import Level

MET, MISSED, CLOSE, UNKNOWN = "met", "missed", "too close to tell", "not measured"


@dataclass(frozen=True)
class Aim:
    """A target and what the runs reach."""

    quantity: str
    target: float
    result: str
    """met, missed, too close to tell or not measured."""
    value: float | None = None
    over: float | None = None
    """value / target - 1."""

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


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
