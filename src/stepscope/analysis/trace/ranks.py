"""Many ranks of one job: their clocks, who waits for whom in which collective, and why one is late.

Ranks arrive at a collective at different times and leave it together. So the ends of the same collectives align the
clocks, and after that the starts tell who came last: the others waited for that rank, inside the kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.analysis.trace.collectives import Extract, align, extract, match
from stepscope.analysis.trace.stragglers import judge

__all__ = ["Extract", "compare_ranks", "extract"]


def compare_ranks(extracts: list[Extract]) -> dict[str, Any]:
    """Return clocks, skew, waiting and stragglers of the ranks of one job; `findings` says it in sentences."""
    ranks = _labels(extracts)
    matched = match(extracts)
    if not len(matched.key):
        reason = "not enough data: no collective that two of these ranks took part in"
        return {"ranks": ranks, "matched": 0, "note": reason, "findings": []}
    offset, spread = align(matched)
    first = next(place for place in range(len(extracts)) if np.isfinite(offset[place]))
    clocks = [
        None
        if not np.isfinite(own)
        else (round(own - offset[first]) + extracts[place].clock - extracts[first].clock) / 1000
        for place, own in enumerate(offset)
    ]
    begun = [one.window_start - own for one, own in zip(extracts, offset.tolist(), strict=True)]
    earliest = min(start for start in begun if np.isfinite(start))
    facts = {
        "ranks": ranks,
        "matched": len(matched.key),
        "offset_us": clocks,
        "alignment_spread_us": spread / 1000,
        "window_start_us": [(start - earliest) / 1000 if np.isfinite(start) else None for start in begun],
    }
    return facts | judge(matched, offset, ranks, max(one.window_ns for one in extracts))


def _labels(extracts: list[Extract]) -> list[int]:
    """Return the ranks; where some are unknown or double, the order of the files."""
    ranks = [one.rank for one in extracts if one.rank is not None]
    return ranks if len(set(ranks)) == len(extracts) else list(range(len(extracts)))
