"""Scores of a verifier: how they are distributed, how many are invalid, and how both change over time."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from stepscope.trackers.metrics.scalar import DeviceScalar, host_number, scalar_of
from stepscope.trackers.metrics.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_VALUES = 1000
"""Different scores that are counted one by one; further ones count as OTHER."""
OTHER = "other"
MOST_BATCHES = 10_000
"""Newest batches that the history keeps."""


class ScoreDistributionTracker:
    """Count scores and their distribution; None, NaN, infinities and non-numbers are invalid.

    All counts and the mean cover everything ever given. The history has one entry per batch, so that a verifier that
    gets worse is seen.
    """

    def __init__(self, *, history: int = MOST_BATCHES) -> None:
        """Keep the figures of the newest `history` batches."""
        self._counts: Counter[str] = Counter()
        self._scores = Statistics()
        self._invalid = 0
        self._history: deque[dict[str, Any]] = deque(maxlen=max(1, history))

    def update(self, scores: Iterable[object] | None, step: int | None = None) -> None:
        """Add a batch of scores: numbers, one-element tensors, or None for an invalid one."""
        batch, invalid = Statistics(), 0
        for score in scores if scores is not None else ():
            number = score_of(score)
            if number is None:
                invalid += 1
                continue
            batch.add(number)
            self._scores.add(number)
            label = repr(number)
            known = label in self._counts or len(self._counts) < MOST_VALUES
            self._counts[label if known else OTHER] += 1
        self._invalid += invalid
        total = batch.count + invalid
        if total:
            figures = {"total": total, "invalid_rate": invalid / total, "mean_score": batch.average}
            self._history.append({"step": step, **figures})

    def get_distribution(self) -> dict[str, Any]:
        """Return total, valid_count, invalid_count, invalid_rate, score_counts, mean_score and std_score.

        Without any score the rate is 0.0 and mean and std are None. Keys of `score_counts` are the scores as text
        ("0.5"), in order of the scores; the std is the population's.
        """
        valid = self._scores.count
        total = valid + self._invalid
        ordered = sorted(self._counts.items(), key=lambda pair: math.inf if pair[0] == OTHER else float(pair[0]))
        return {
            "total": total,
            "valid_count": valid,
            "invalid_count": self._invalid,
            "invalid_rate": self._invalid / total if total else 0.0,
            "score_counts": dict(ordered),
            "mean_score": self._scores.average,
            "std_score": self._scores.std,
        }

    @property
    def newest(self) -> dict[str, Any] | None:
        """The last entry of the history; None before the first score."""
        return dict(self._history[-1]) if self._history else None

    def get_history(self) -> list[dict[str, Any]]:
        """Return step, total, invalid_rate and mean_score (None if no score was valid) of each batch, oldest first."""
        return [dict(entry) for entry in self._history]


def score_of(score: object) -> float | None:
    """Return a score as a finite number, or None for an invalid one; a tensor on a device is waited for."""
    if score is None:
        return None
    found = scalar_of(score)
    try:
        number = float(host_number(found.tensor) if isinstance(found, DeviceScalar) else found)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
