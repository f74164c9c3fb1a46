"""Statistics of the points before each point: what could be known when it came."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.arrays import Floats, Integers


EXACT = 100_000
"""Points up to which every point has its own quantiles; beyond, they are renewed `RENEWALS` times."""
RENEWALS, LONGER = 500, 16
SHORT = 4096
"""Points up to which a series is sorted window by window, with numpy alone."""
CHUNK = 2**21
"""Numbers that are sorted at a time: 16 MiB."""


def quantile_before(values: Floats, window: int, share: float) -> Floats:
    """Return for each point a quantile of the `window` points before it; see `quantiles_before`."""
    found: Floats = _young(values, window, [share])[0]
    rest = window + 1
    if rest < len(values) <= SHORT:  # as a watcher has them, which must not load scipy
        found[rest:] = _ranked(values[1:-1], window, round(share * (window - 1)))
    elif len(values) > rest:
        from scipy.ndimage import rank_filter

        shift = (window - 1) // 2 + 1  # the filter's window ends so far behind its point
        ranked = rank_filter(values, round(share * (window - 1)), size=window, mode="nearest")
        found[rest:] = ranked[rest - shift : len(values) - shift]
    return found


@dataclass(frozen=True)
class EarlierValues:
    """Quantiles of the points before each point; in a long series several points share a column."""

    table: Floats
    """A row per share, a column per past."""
    column: Integers
    """For each point, the column of its past."""

    def row(self, number: int) -> Floats:
        """Return one of the quantiles for every point."""
        return np.asarray(self.table[number][self.column])

    def before(self, point: Any) -> Floats:
        """Return all quantiles of a point or of some points, a row per share."""
        return np.asarray(self.table[:, self.column[point]])


def quantiles_before(values: Floats, window: int, shares: Sequence[float]) -> EarlierValues:
    """Return quantiles of the `window` finite points before each point.

    Fewer points count at the start; the first point has none (NaN). Nothing is interpolated: each is one of the points.
    Costs O(n log window). In a long series they are renewed `RENEWALS` times only, and from a past that is at least
    `LONGER` times as long as they hold, so that a trend does not leave it meanwhile.
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


def mean_until(values: Floats, window: int) -> Floats:
    """Return for each point the mean of the last `window` points, itself included; fewer at the start."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - window)
    return np.asarray((total[end] - total[start]) / (end - start))


def _ranked(values: Floats, window: int, rank: int) -> Floats:
    """Return the value of a rank in every window, some windows at a time: 2 MiB are copied at most."""
    views = np.lib.stride_tricks.sliding_window_view(values, window)
    parts = np.array_split(views, -(-views.size * 8 // CHUNK))
    return np.concatenate([np.partition(part, rank, axis=1)[:, rank] for part in parts])


def _young(values: Floats, window: int, shares: Sequence[float]) -> Floats:
    """Return the quantiles of the points that have no full window before them; NaN for the others."""
    found = np.full((len(shares), len(values)), np.nan)
    seen: list[float] = []
    for at, value in enumerate(values[: window + 1].tolist()):
        if seen:
            found[:, at] = [seen[round(share * (len(seen) - 1))] for share in shares]
        bisect.insort(seen, value)
    return found
