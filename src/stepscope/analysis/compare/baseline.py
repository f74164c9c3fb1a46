"""A baseline: the normal figures of one program, saved in a small file to compare later runs with.

It holds the curves of its runs, shortened if they are long, and their hardware and settings; so comparing with a
baseline is comparing with its runs. The next run lies in the normal range with 95 % confidence if nothing has changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.compare.comparison import kind_in, measure, usual
from stepscope.analysis.compare.difference import CONFIDENCE, one_more_run, t_quantile
from stepscope.analysis.compare.quantity import kind_of, unit_in
from stepscope.analysis.compare.recording import Curve, Group, Recording
from stepscope.analysis.finding import WithFacts

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
"""Half-width of a range, in values, up to which it is a range of ratios; a wider one is a range of differences."""


@dataclass(frozen=True)
class Range(WithFacts):
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
            low, value, high = _normal(levels.groups[0], kind_in(spec, levels, [group]), confidence)
            if math.isfinite(low) and math.isfinite(high):
                runs = len(group.runs)
                found.append(Range(spec.text, unit_in(spec.name), value, low, high, runs, levels.text))
    return found


def _normal(levels: tuple[Level, ...], kind: QuantityKind, confidence: float) -> tuple[float, float, float]:
    """Return where one more run lies: low, middle, high."""
    with np.errstate(all="ignore"):
        value, deviation, freedom = one_more_run(levels, kind)
    reach = t_quantile(confidence, freedom) * deviation * math.sqrt(1 + 1 / len(levels))
    if all(level.value > 0 for level in levels) and reach / value < MOST_REACH:  # times, bytes: a range of ratios
        return value * math.exp(-reach / value), value, value * math.exp(reach / value)
    return value - reach, value, value + reach


def to_facts(group: Group, made: str = "") -> dict[str, Any]:
    """Return a baseline of some runs as plain values; `made` is the time in ISO 8601."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": group.label,
        "made": made,
        "runs": [_run(run) for run in group.runs[:MOST_RUNS]],
        "ranges": [item.facts() for item in ranges(group)],
    }


def from_facts(facts: Any) -> Group:
    """Return the runs of a baseline.

    Raises:
        ValueError: it is not a baseline, or has a newer version.
    """
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError("it is no baseline")
    version = facts.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise ValueError(f"it has version {version}, newer than ours")
    try:
        return Group(str(facts["name"]), tuple(_recording(run) for run in facts["runs"][:MOST_RUNS]))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is damaged ({error!r})") from error


def _run(run: Recording) -> dict[str, Any]:
    names = sorted(run.curves, key=lambda name: (kind_of(name).name == "other", name))[:MOST_CURVES]
    curves = {name: _curve(run.curves[name]) for name in names}
    return {"label": run.label, "span": run.span, "planned": run.planned, "facts": run.facts, "curves": curves}


def _curve(curve: Curve) -> dict[str, Any]:
    peak = [int(np.argmax(curve.value))] if len(curve) else []
    kept = np.union1d(np.arange(max(0, len(curve) - MOST_STEPS), len(curve)), peak).astype(np.int64)
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
    span, planned = facts.get("span"), facts.get("planned")
    known = (float(span[0]), float(span[1])) if span is not None else None
    steps = int(planned) if isinstance(planned, (int, float)) else None
    return Recording(str(facts["label"]), curves, dict(facts["facts"]), known, steps)
