"""The targets that the configuration sets, held against runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.analysis.compare import gate
from stepscope.analysis.compare.comparison import measure
from stepscope.analysis.compare.difference import CONFIDENCE
from stepscope.analysis.compare.gate import Aim, Judgement, aim
from stepscope.analysis.compare.quantity import Spec
from stepscope.core.config import discover, load
from stepscope.core.numbers import format_value
from stepscope.core.vocabulary import unit_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.analysis.compare.recording import Group

SECTION = "targets."
RESULTS = {
    gate.MET: gate.PASSED,
    gate.MISSED: gate.FAILED,
    gate.CLOSE: gate.UNDECIDED,
    gate.UNKNOWN: gate.NOT_JUDGED,
}


def targets(cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> dict[str, float]:
    """Return the targets by quantity (`step_seconds`, `loss@1000`), in base units.

    Raises:
        UsageError: the configuration cannot be read.
    """
    environ = os.environ if environ is None else environ
    config = load(discover(cwd or Path.cwd(), environ), environ=environ)
    return {path.removeprefix(SECTION): config.get(path) for path in config.values if path.startswith(SECTION)}


def as_gate(found: Aim) -> Judgement:
    """Return a target as a gate: missed fails, too close is undecided, not measured is not judged."""
    unit = unit_of(found.quantity.partition("@")[0])
    text = f"target {found.quantity} {format_value(found.target, unit)}"
    reached = "it is not measured" if found.value is None else f"it is {format_value(found.value, unit)}"
    return Judgement(text, RESULTS[found.result], reached)


def aims(group: Group, wanted: Mapping[str, float], confidence: float = CONFIDENCE) -> list[Aim]:
    """Return how far the runs of a group reach each target."""
    found = []
    for name, figure in wanted.items():
        try:
            levels = measure(Spec.parse(name), [group], quiet=False)
        except ValueError:
            found.append(Aim(name, figure, gate.UNKNOWN))
            continue
        found.append(aim(name, figure, levels.groups[0] if levels.groups else (), confidence))
    return found
