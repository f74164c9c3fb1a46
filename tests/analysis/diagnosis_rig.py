"""Runs that were never run: steps, series and events as a diagnosis takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.diagnosis.evidence import Evidence, RankSteps, Track

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

HEALTHY = {"data": 0.001, "forward": 0.01, "backward": 0.02, "optimizer": 0.004, "other": 0.001}
"""Seconds of the phases of a step that nothing is wrong with."""


def steps(
    phases: Mapping[str, float | Numbers] = HEALTHY, count: int = 200, rank: int = 0, seed: int = 0, noise: float = 0.05
) -> RankSteps:
    """Return steps with these phases, each with some noise; an array is taken as it is."""
    chance = np.random.default_rng(seed + rank)
    made = {
        name: np.asarray(value) if isinstance(value, np.ndarray) else value * chance.normal(1, noise, count).clip(0.5)
        for name, value in phases.items()
    }
    seconds = np.nansum(np.stack(list(made.values())), axis=0)
    return RankSteps(rank, np.arange(count), 1.7e9 + np.cumsum(seconds), seconds, made)


def track(value: Sequence[float] | Numbers, every: int = 1, apart: float = 1.0) -> Track:
    """Return a metric, one value every so many steps and seconds."""
    values = np.asarray(value, np.float64)
    when = np.asarray(1.7e9 + np.arange(len(values)) * apart, np.float64)
    return Track(np.arange(len(values)) * every, when, values)


def falling(count: int = 300, seed: int = 0, noise: float = 0.02) -> Numbers:
    """Return the loss of a training that goes well."""
    chance = np.random.default_rng(seed)
    return 0.3 + 2.0 * np.exp(-np.arange(count) / (count / 6)) + chance.normal(0, noise, count)


def evidence(*ranks: RankSteps, events: Sequence[Mapping[str, Any]] = (), **given: Any) -> Evidence:
    """Return a run of these ranks; `series` by name, as tracks or values of rank 0."""
    series = {
        name: value if isinstance(value, dict) else {0: value if isinstance(value, Track) else track(value)}
        for name, value in given.pop("series", {}).items()
    }
    given.setdefault("processors", 2.0)
    return Evidence(ranks, series, list(events), **given)


def busy() -> dict[str, Track]:
    """Return the samples of a machine on which others take one processor of two."""
    return {"cpu/usage_ratio": track(np.full(20, 1.0)), "process/0/tree_cpu_ratio": track(np.full(20, 1.0))}
