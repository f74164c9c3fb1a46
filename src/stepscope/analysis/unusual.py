"""What is worth telling about a series, as findings: a loss's spikes, anomalies and lasting changes of all else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.anomalies import anomalies
from stepscope.analysis.change_points import LEVEL, change_points
from stepscope.analysis.finding import CRITICAL, INFO, WARNING, Finding
from stepscope.analysis.rises import growth
from stepscope.analysis.spikes import spikes
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

NOTABLE = 0.03
"""Lasting change of level below which nothing is told: same-program pairs of modded-nanogpt-runs differ by 0.35 %."""
MOST = 20
"""Findings of one kind in one series; the strongest are told."""


def unusual(name: str, step: ArrayLike, value: ArrayLike) -> list[Finding]:
    """Return what is unusual in a series, in order of its steps.

    Args:
        name: of the metric. One that is a loss is searched for spikes, any other for anomalies and changes of level.
        step: of each point, by which it is told.
        value: of each point, in order.
    """
    steps, values = np.asarray(step).ravel(), np.asarray(value, dtype=np.float64).ravel()
    found = (
        _loss(name, steps, values)
        if is_loss(name)
        else [*_anomalies(name, steps, values), *_changes(name, steps, values)]
    )
    return sorted(found, key=lambda each: float(each.evidence["step"]))


def is_loss(name: str) -> bool:
    """Return whether a metric is a loss, by the last part of its name."""
    return name.replace("_", "/").rsplit("/", 1)[-1] == "loss"


def _loss(name: str, steps: NDArray[np.generic], values: NDArray[np.float64]) -> list[Finding]:
    bad = np.flatnonzero(~np.isfinite(values))
    found = []
    if len(bad):
        text = f"{name} is not finite at {len(bad)} of {len(values)} points, first at step {steps[bad[0]]}"
        where = {"step": int(steps[bad[0]]), "points": len(bad)}
        found.append(Finding("nonfinite_loss", text, CRITICAL, remedy("non_finite", step=where["step"]), where))
    for spike in sorted(spikes(values).spikes, key=lambda each: -each.height)[:MOST]:
        back = f"and was back by step {steps[spike.end]}" if spike.recovered else "and has not come back"
        risen = f"from {spike.level:.4g} to {spike.top:.4g}{growth(spike.level, spike.top)}"
        text = f"{name} rose at step {steps[spike.index]} {risen}, {back}"
        advice = remedy("loss_spike", step=int(steps[spike.index]))
        evidence = {"step": int(steps[spike.index]), "level": spike.level, "top": spike.top, "height": spike.height}
        found.append(Finding("loss_spike", text, WARNING if spike.recovered else CRITICAL, advice, evidence))
    return found


def _anomalies(name: str, steps: NDArray[np.generic], values: NDArray[np.float64]) -> Iterator[Finding]:
    for each in sorted(anomalies(values).anomalies, key=lambda one: -one.score)[:MOST]:
        text = f"{name} stands out at step {steps[each.index]}: {each.value:.4g}"
        evidence = {"step": int(steps[each.index]), "value": each.value, "score": each.score, "of": each.kind}
        yield Finding("anomaly", text, INFO, "", {**evidence, "low": each.low, "high": each.high})


def _changes(name: str, steps: NDArray[np.generic], values: NDArray[np.float64]) -> Iterator[Finding]:
    for change in sorted(change_points(values).changes, key=lambda one: -one.score)[:MOST]:
        if change.kind == LEVEL and (change.ratio is None or abs(change.ratio) >= NOTABLE):
            text = f"{name} changed at step {steps[change.index]} from {change.before:.4g} to {change.after:.4g}"
            evidence = {"step": int(steps[change.index]), "before": change.before, "after": change.after}
            yield Finding(
                "change_point", text, INFO, "look at what else changed then", {**evidence, "score": change.score}
            )
