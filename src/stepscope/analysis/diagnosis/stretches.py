"""Spans: many steps in a row in which one phase takes several times as long as in all the others.

A slow file system for a minute, or an epoch from a cold cache, is neither a share of every step nor periodic.
Other programs slow down all phases equally, so a phase that grows alone is slowed by the run itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stepscope.analysis.diagnosis.evidence import RankSteps


TIMES = 3.0
"""Times its level elsewhere that a phase must take in a span."""
OF_A_STEP = 0.5
"""Share of the usual step that it must take more than elsewhere."""
ALONE = 2.0
"""Times by which it must grow more than the passes do in the same steps."""
FEWEST, FEWEST_ROWS = 8, 40
"""Steps in a row that are a span; and rows of a run in which one can be detected."""
NEARLY_ALL = 0.1
"""Quantile of the phase over a span that must be that long, too: a busy machine leaves some steps alone."""
WIDTH = 5
"""Rows around each whose median decides: single steps neither make nor break a span."""


@dataclass(frozen=True)
class SlowSpan:
    """The spans of one phase, of which `first` to `last` is the longest."""

    first: int
    """Step with which it begins."""
    last: int
    before: float
    """Seconds of the phase in a step elsewhere."""
    during: float
    """Seconds of the phase in nearly every step of the spans."""
    seconds: float
    """Seconds that all spans took more than as many other steps."""
    others: int
    """Further spans."""


def stretch_of(steps: RankSteps, phase: str, passes: tuple[str, ...]) -> SlowSpan | None:
    """Return where a phase takes several times as long for many steps in a row; None if nowhere."""
    each, weight = steps.phase(phase), steps.weights[steps.measured]
    if len(each) < FEWEST_ROWS:
        return None
    whole = np.nan_to_num(steps.seconds[steps.measured])
    level = float(np.median(each))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(each, WIDTH // 2, mode="edge"), WIDTH)
    high = np.median(windows, axis=1) > max(TIMES * level, level + OF_A_STEP * float(np.median(whole)))
    edges = np.flatnonzero(np.diff(np.concatenate([[0], high.astype(np.int8), [0]])))
    parts = [(first, end) for first, end in edges.reshape(-1, 2).tolist() if weight[first:end].sum() >= FEWEST]
    if not parts:
        return None
    inside = np.zeros(len(each), bool)
    for first, end in parts:
        inside[first:end] = True
    during = float(np.quantile(each[inside], NEARLY_ALL))
    computed = np.asarray(sum((steps.phase(name) for name in passes), np.zeros(len(each))))
    slowed = _ratio(float(np.median(computed[inside])), float(np.median(computed[~inside])))
    if during < TIMES * level or _ratio(during, level) < ALONE * slowed:
        return None
    first, end = max(parts, key=lambda part: float(weight[part[0] : part[1]].sum()))
    rows = steps.step[steps.measured]
    scale = steps.count / float(weight.sum())
    lost = (during - level) * float(weight[inside].sum()) * scale
    return SlowSpan(int(rows[first]), int(rows[end - 1]), level, during, lost, len(parts) - 1)


def _ratio(value: float, other: float) -> float:
    return value / other if other > 0 else float("inf") if value > 0 else 1.0
