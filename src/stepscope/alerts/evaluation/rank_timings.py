"""The timing of each rank in the newest steps, from the windows of its series."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.series.robust import median
from stepscope.analysis.stragglers.pace import StepTable, paces

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.alerts.evaluation.series_window import SeriesWindow
    from stepscope.analysis.stragglers.pace import StepTiming
    from stepscope.core.arrays import Floats


STEP, PHASE = "step_seconds", "phase/"
SECONDS, FEWEST = 20.0, 12
"""The window: the steps of so many seconds, but at least so many steps."""
WORK = ("tokens", "samples")


def window_size(steps: SeriesWindow, most: int) -> int:
    """Return how many of the newest steps to look at; 0 if there are too few."""
    if len(steps) < FEWEST:
        return 0
    usual = median(steps.value[-most:])
    wanted = int(SECONDS / usual) if usual > 0 else most
    size = max(FEWEST, min(most, wanted))
    return size if len(steps) >= size and steps.total > size else 0  # the first step is warm-up


def timing_of(
    rank: int, series: Mapping[str, SeriesWindow], most: int, node: str = "", facts: Mapping[str, float] | None = None
) -> StepTiming | None:
    """Return the timing of a rank in its newest steps, at most `most`; None if it has too few."""
    steps = series.get(STEP)
    size = window_size(steps, most) if steps is not None else 0
    if steps is None or not size or not np.isfinite(steps.value[-size:]).all():
        return None
    step, seconds = steps.step[-size:], steps.value[-size:]
    phases = {
        name.removeprefix(PHASE): _at(step, window)[None, :]
        for name, window in series.items()
        if name.startswith(PHASE) and len(window)
    }
    known = {name: median(series[name].value[-size:]) for name in WORK if name in series and len(series[name])}
    last = int(step[-1]) if np.isfinite(step[-1]) else -1
    table = StepTable([rank], np.full(1, last), seconds[None, :], phases, [node], [{**(facts or {}), **known}])
    (found,) = paces(table)
    return found


def _at(step: Floats, window: SeriesWindow) -> Floats:
    """Return the values of a phase at these steps; 0 in a step that did not have it."""
    order = np.argsort(window.step, kind="stable")
    place = np.searchsorted(window.step[order], step, "right") - 1
    at = order[np.maximum(place, 0)]
    return np.nan_to_num(np.where((place >= 0) & (window.step[at] == step), window.value[at], 0.0))
