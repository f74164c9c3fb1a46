"""A part of a trace that is too large to be looked at as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.trace.window import TraceWindow
from stepscope.core.trace import Sparse

if TYPE_CHECKING:
    from stepscope.core.trace import Trace

PART = "part"
"""Kind of the window of a part."""


def middle(trace: Trace, window: TraceWindow, most: int) -> tuple[Trace, TraceWindow]:
    """Return at most `most` events from the middle of a window, and their window; all if they are not more.

    The columns are views: a part costs no memory. Memory reports stay whole.
    """
    low, high = (int(place) for place in np.searchsorted(trace.start, [window.start, window.end]))
    if high - low <= most:
        return trace, window
    first = (low + high - most) // 2
    rows = slice(first, first + most)
    columns = {
        key: getattr(trace, key)[rows] for key in ("start", "end", "name", "kind", "lane", "correlation", "external")
    }
    numbers, texts = (
        {key: _cut(column, first, first + most) for key, column in sparse.items()}
        for sparse in (trace.numbers, trace.texts)
    )
    part = replace(trace, **columns, numbers=numbers, texts=texts)
    busy = part.on_device
    ends = part.end[busy] if busy.any() else part.end
    starts = part.start[busy] if busy.any() else part.start
    return part, TraceWindow(PART, int(starts.min()), min(int(ends.max()), window.end))


def _cut(column: Sparse, first: int, last: int) -> Sparse:
    low, high = np.searchsorted(column.rows, [first, last])
    return Sparse(column.rows[low:high] - first, column.values[low:high])
