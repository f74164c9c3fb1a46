"""Periods: events at regular intervals come from the program itself, events at random from other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.series.robust import median

if TYPE_CHECKING:
    from stepscope.core.arrays import Floats


FEWEST = 4
"""Minimum events to detect a period."""
TOLERANCE, TOLERANCE_FEW, MANY = 0.2, 0.08, 8
"""An interval is regular if it is this close to a multiple of the median interval, relative to it. With fewer than
`MANY` events, which may be regular by chance, it must be closer."""
MOSTLY = 0.8
"""Minimum share of regular intervals."""
SHORTEST_IN_STEPS = 2.0
"""Shortest period in steps: every whole number is a multiple of 1."""
IN_PHASE, MOSTLY_IN_PHASE = 0.04, 0.75
"""Events with others in between are periodic if 75 % of all are at the same point of the period, within 4 % of it."""


def period_of(places: Floats, least: float = 0.0) -> float | None:
    """Return the period of events at steps or times, of which some may be missing or extra; None if there is none."""
    apart = np.diff(places)
    apart = apart[apart > 0]
    usual = median(apart) if len(apart) else 0.0
    if len(places) < FEWEST or not len(apart) or usual < least:
        return None
    off = np.abs(apart / usual - np.maximum(1, np.round(apart / usual)))
    tolerance = TOLERANCE if len(places) >= MANY else TOLERANCE_FEW
    return usual if float((off <= tolerance).mean()) >= MOSTLY else _among_others(places, apart)


def _among_others(places: Floats, apart: Floats) -> float | None:
    """Return the most frequent interval, if most events keep to it though others lie between them."""
    sizes, counts = np.unique(np.round(apart, 6), return_counts=True)
    period = float(sizes[int(np.argmax(counts))])
    if counts.max() < max(3, 0.3 * len(apart)) or period <= 1:
        return None
    phase = np.mod(places, period) / period
    distance = np.abs(phase[:, None] - phase[None, :])
    near = np.minimum(distance, 1 - distance) <= IN_PHASE
    return period if float(near.mean(axis=1).max()) >= MOSTLY_IN_PHASE else None
