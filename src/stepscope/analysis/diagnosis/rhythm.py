"""Periods: whether events come at even distances, as from the program itself, or by chance, as from others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stepscope.core.arrays import Floats


FEWEST = 4
"""Fewest events to detect a period."""
UNEVEN, UNEVEN_FEW, MANY = 0.2, 0.08, 8
"""How far, in usual distances, a distance may be from one of them or a multiple: with many events, and with fewer than
`MANY`, which chance may set evenly."""
MOSTLY = 0.8
"""Share of the distances that must be even."""
EVERY_OTHER = 2.0
"""Least distance between two steps of a rhythm."""
BEAT, ON_BEAT = 0.04, 0.75
"""The other sign: this share of all events within this part of a beat of the same place in it, whatever else comes in
between."""


def even(places: Floats, least: float = 0.0) -> float | None:
    """Return the usual distance of places that come periodically, some of them missing or added; else None.

    Args:
        places: in order.
        least: distance at least; of steps 2, for every whole number is a multiple of 1.
    """
    if len(places) < FEWEST:
        return None
    apart = np.diff(places)
    apart = apart[apart > 0]
    if not len(apart):
        return None
    usual = float(np.median(apart))
    if usual < least:
        return None
    multiple = np.abs(apart / usual - np.maximum(1, np.round(apart / usual)))
    reach = UNEVEN if len(places) >= MANY else UNEVEN_FEW
    if float((multiple <= reach).mean()) >= MOSTLY:
        return usual
    return _beat(places, apart)


def _beat(places: Floats, apart: Floats) -> float | None:
    """Return the distance that most places keep to, though others lie between them."""
    sizes, counts = np.unique(np.round(apart, 6), return_counts=True)
    beat = float(sizes[int(np.argmax(counts))])
    if counts.max() < max(3, 0.3 * len(apart)) or beat <= 1:
        return None
    place = np.mod(places, beat) / beat
    distance = np.abs(place[:, None] - place[None, :])
    near = np.minimum(distance, 1 - distance) <= BEAT
    return beat if float(near.mean(axis=1).max()) >= ON_BEAT else None
