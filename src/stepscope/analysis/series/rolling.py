"""Statistics of the points before each point: what could be known when it came."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.series.robust import medians

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.arrays import Floats, Integers


EXACT = 100_000
"""Up to this many points every point has its own quantiles; of the rest they are renewed `RENEWALS` times."""
RENEWALS, LONGER = 500, 16
SHORT = 4096
"""Up to this many points numpy alone sorts every window."""
CHUNK = 2**21
"""Numbers that are sorted at a time: 16 MiB."""
BLOCK = 10_000
"""Windows of a moving median that are sorted at a time."""


def quantile_before(values: Floats, window: int, share: float) -> Floats:
    """Return for each point a quantile of the `window` points before it; see `quantiles_before`."""
    found: Floats = np.full(len(values), np.nan)
    seen: list[float] = []
    for at, value in enumerate(values[: window + 1].tolist()):  # these have no full window before them
        if seen:
            found[at] = seen[round(share * (len(seen) - 1))]
        bisect.insort(seen, value)
    rest, rank = window + 1, round(share * (window - 1))
    if rest < len(values) <= SHORT:  # the watcher has short series, and must not load scipy
        views = np.lib.stride_tricks.sliding_window_view(values[1:-1], window)
        parts = np.array_split(views, -(-views.size * 8 // CHUNK))  # copies at most 2 MiB at a time
        found[rest:] = np.concatenate([np.partition(part, rank, axis=1)[:, rank] for part in parts])
    elif len(values) > rest:
        from scipy.ndimage import rank_filter

        shift = (window - 1) // 2 + 1  # the filter's window ends this far behind its point
        found[rest:] = rank_filter(values, rank, size=window, mode="nearest")[rest - shift : len(values) - shift]
    return found


@dataclass(frozen=True)
class EarlierValues:
    """Quantiles of the points before each point; in a long series several points share a column."""

    table: Floats
    """A row per quantile, a column per past."""
    column: Integers
    """The column of each point's past."""

    def row(self, number: int) -> Floats:
        """Return one of the quantiles for every point."""
        return np.asarray(self.table[number][self.column])

    def before(self, point: Any) -> Floats:
        """Return all quantiles of one or several points, a row per quantile."""
        return np.asarray(self.table[:, self.column[point]])


def quantiles_before(values: Floats, window: int, shares: Sequence[float]) -> EarlierValues:
    """Return quantiles of the `window` finite points before each point; the first point has none (NaN).

    At the start there are fewer points. Nothing is interpolated: each quantile is one of the points. Costs O(n log
    window). In a long series they are renewed only `RENEWALS` times, from a past at least `LONGER` times as long as
    they are valid, so that a trend does not leave it in the meantime.
    """
    count = len(values)
    exact = np.stack([quantile_before(values[:EXACT], window, share) for share in shares])
    if count <= EXACT:
        return EarlierValues(exact, np.arange(count))
    every = count // RENEWALS
    ends = np.arange(EXACT, count, every)
    step = max(1, min(LONGER * every, EXACT - window) // window) | 1  # odd: a past of every second point is half of it
    pasts = np.lib.stride_tricks.sliding_window_view(values, (window - 1) * step + 1)[:, ::-step]
    ranks = [round(share * (window - 1)) for share in shares]
    renewed = [
        np.partition(pasts[some - (window - 1) * step - 1], sorted(set(ranks)), axis=1)[:, ranks].T
        for some in np.array_split(ends, -(-len(ends) * window // CHUNK))
    ]
    sharing = EXACT + np.repeat(np.arange(len(ends)), np.diff(ends, append=count))
    return EarlierValues(np.concatenate([exact, *renewed], axis=1), np.concatenate([np.arange(EXACT), sharing]))


def moving_median(values: Floats, width: int) -> Floats:
    """Return the median of the `width` values around each (an odd number); beyond the ends the last value repeats."""
    views = np.lib.stride_tricks.sliding_window_view(np.pad(values, width // 2, mode="edge"), width)
    return np.concatenate([medians(views[at : at + BLOCK]) for at in range(0, len(values), BLOCK)])


def mean_until(values: Floats, window: int) -> Floats:
    """Return for each point the mean of the last `window` points, itself included; fewer at the start."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - window)
    return np.asarray((total[end] - total[start]) / (end - start))
