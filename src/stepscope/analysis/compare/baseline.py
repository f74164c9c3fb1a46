"""A baseline: the normal figures of one program, saved in a small file to compare later runs with.

It holds the curves of its runs, thinned where they are long, and their hardware and settings; so a comparison
with a baseline is the comparison with its runs. The normal range of a quantity is where the next run lies with 95 %
confidence if nothing has changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.compare.comparison import kind_in, measure, usual
from stepscope.analysis.compare.difference import CONFIDENCE, one_more_run, t_quantile
from stepscope.analysis.compare.quantity import MEAN_STEP, kind_of
from stepscope.analysis.compare.recording import Curve, Group, Recording
from stepscope.analysis.finding import Facts
from stepscope.core.vocabulary import unit_of

if TYPE_CHECKING:
    from stepscope.analysis.compare.level import Level
    from stepscope.analysis.compare.quantity import QuantityKind

FORMAT = "stepscope-baseline"
VERSION = 1
MOST_RUNS = 200
MOST_STEPS = 4096
"""Last steps of a curve to keep; earlier steps say less about the speed of a program."""
MOST_CURVES = 64
MOST_REACH = 100.0
"""Times the value that a range of ratios may reach; beyond, it is one of differences."""


@dataclass(frozen=True)
class Range(Facts):
    """Where the next run lies if nothing has changed."""

    quantity: str
    unit: str
    value: float
    low: float
    high: float
    runs: int
    definition: str


def ranges(group: Group, confidence: float = CONFIDENCE) -> list[Range]:
    """Return the normal range of each quantity that the runs have."""
    found = []
    for spec in usual(group, group):
        levels = measure(spec, [group])
        if levels.groups:
            unit = "seconds" if spec.name == MEAN_STEP else unit_of(spec.name)
            low, value, high = normal(levels.groups[0], kind_in(spec, levels, [group]), confidence)
            if math.isfinite(low) and math.isfinite(high):
                found.append(Range(spec.text, unit, value, low, high, len(group.runs), levels.text))
    return found


def normal(levels: tuple[Level, ...], kind: QuantityKind, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return where one more run lies: low, middle, high."""
    with np.errstate(all="ignore"):
        value, deviation, freedom = one_more_run(levels, kind)
    reach = t_quantile(confidence, freedom) * deviation * math.sqrt(1 + 1 / len(levels))
    if all(level.value > 0 for level in levels) and reach / value < MOST_REACH:  # times, bytes: a range of ratios
        return value * math.exp(-reach / value), value, value * math.exp(reach / value)
    return value - reach, value, value + reach


def to_facts(group: Group, made: str = "") -> dict[str, Any]:
    """Return a baseline of some runs as plain values.

    Args:
        group: the runs.
        made: when, in ISO 8601.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": group.label,
        "made": made,
        "runs": [_run(run) for run in group.runs[:MOST_RUNS]],
        "ranges": [item.facts() for item in ranges(group)],
    }


def is_baseline(facts: Any) -> bool:
    """Return whether plain values have the format of a baseline."""
    return isinstance(facts, dict) and facts.get("format") == FORMAT


def from_facts(facts: Any) -> Group:
    """Return the runs of a baseline.

    Raises:
        ValueError: it is not a baseline, or has a newer version.
    """
    if not is_baseline(facts):
        raise ValueError("it is no baseline")
    version = facts.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise ValueError(f"it has version {version}, newer than ours")
    try:
        runs = tuple(_recording(run) for run in facts["runs"][:MOST_RUNS])
        return Group(str(facts["name"]), runs)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is damaged ({error!r})") from error


def _run(run: Recording) -> dict[str, Any]:
    kept = dict(sorted(run.curves.items(), key=lambda item: (kind_of(item[0]).name == "other", item[0]))[:MOST_CURVES])
    return {
        "label": run.label,
        "span": run.span,
        "planned": run.planned,
        "facts": run.facts,
        "curves": {name: _curve(curve) for name, curve in kept.items()},
    }


def _curve(curve: Curve) -> dict[str, Any]:
    peak = int(np.argmax(curve.value)) if len(curve) else 0
    kept = np.union1d(np.arange(max(0, len(curve) - MOST_STEPS), len(curve)), [peak] if len(curve) else [])
    kept = kept.astype(np.int64)
    elapsed = [None if math.isnan(value) else round(value, 9) for value in curve.elapsed[kept].tolist()]
    return {"step": curve.step[kept].tolist(), "elapsed": elapsed, "value": curve.value[kept].tolist()}


def _recording(facts: dict[str, Any]) -> Recording:
    curves = {}
    for name, columns in facts["curves"].items():
        step = np.array(columns["step"], np.int64)
        elapsed = np.array([math.nan if value is None else value for value in columns["elapsed"]], np.float64)
        value = np.array(columns["value"], np.float64)
        if not len(step) == len(elapsed) == len(value) or not np.isfinite(value).all() or (np.diff(step) <= 0).any():
            raise ValueError(f"it is damaged: {name!r} is no curve")
        curves[str(name)] = Curve(step, elapsed, value)
    span = facts.get("span")
    known = (float(span[0]), float(span[1])) if span is not None else None
    planned = facts.get("planned")
    steps = int(planned) if isinstance(planned, (int, float)) else None
    return Recording(str(facts["label"]), curves, dict(facts["facts"]), known, steps)
