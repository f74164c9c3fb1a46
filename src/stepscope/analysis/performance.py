"""PerformanceAnalyzer: statistics of a history of metrics, kept as rows."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.series.anomalies import PLAIN_LIMIT, anomalies, plain, z_scores
from stepscope.analysis.series.change_points import Changes, change_points
from stepscope.analysis.series.patterns import Pattern, figures, pattern
from stepscope.analysis.series.spikes import Spikes, spikes
from stepscope.analysis.series.trend import SIGNIFICANT, UNKNOWN, Trend, trend, windowed
from stepscope.core.gpu_memory import total_in_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.core.arrays import Floats


Z_SCORE, ROBUST = "z_score", "robust"
"""Methods of `detect_anomalies`: the plain z-score, and the detector that uses the history."""


class PerformanceAnalyzer:
    """Trends, resource use and anomalies of a history: rows with `loss`, `timestamp`, `cpu_percent`, `gpu_memory`.

    Missing values, and values that are not numbers, count as absent. `gpu_memory` may be a number or any form by GPU,
    which is summed; `timestamp` may be seconds, a datetime or its ISO form. If no row has one, rows are numbered.
    """

    def __init__(self, metrics_history: Iterable[Mapping[str, Any]]) -> None:
        """Take the rows as they are; they are not copied."""
        self.metrics_history = metrics_history if isinstance(metrics_history, list) else list(metrics_history)

    def analyze_loss_trend(self) -> dict[str, Any]:
        """Return `slope` per second, `r_squared`, `p_value`, `trend` and `significance` of the loss over time.

        The numbers are scipy's linregress. Without two points at different times they are None and `trend` is unknown.
        """
        line = self.loss_trend()
        direction = UNKNOWN if line.slope is None else "decreasing" if line.slope < 0 else "increasing"
        sure = line.p_value is not None and line.p_value < SIGNIFICANT
        fit = {"slope": line.slope, "r_squared": line.r_squared, "p_value": line.p_value}
        return fit | {"trend": direction, "significance": "significant" if sure else "not_significant"}

    def analyze_resource_usage(self) -> dict[str, dict[str, float | None]]:
        """Return `mean`, `std`, `max` and `min` of `cpu_percent` and `gpu_memory`; None without any value."""
        return {"cpu_stats": _stats(self._column("cpu_percent")), "gpu_stats": _stats(self._gpu_memory())}

    def detect_anomalies(self, method: str = Z_SCORE, threshold: float | None = None) -> list[dict[str, Any]]:
        """Return `index`, `timestamp`, `loss` and `z_score` of each row whose loss stands out.

        Args:
            method: `z_score` (beyond 2 standard deviations, so it flags the start of a falling loss), or
                `robust`, which compares with the past and never flags the start.
            threshold: of |z| (2), or of the robust score (1).
        """
        losses = self._column("loss")
        scores = z_scores(losses)
        if method == ROBUST:
            rows = anomalies(losses, threshold=1.0 if threshold is None else threshold).indices
        elif method == Z_SCORE:
            rows = plain(losses, PLAIN_LIMIT if threshold is None else threshold)
        else:
            raise ValueError(f"cannot detect anomalies by {method!r}: no such method; choose {Z_SCORE} or {ROBUST}")
        times = [self.metrics_history[at].get("timestamp") for at in rows]
        return [
            {"index": at, "timestamp": time, "loss": float(losses[at]), "z_score": float(scores[at])}
            for at, time in zip(rows, times, strict=True)
        ]

    def loss_trend(self) -> Trend:
        """Return the full trend of the loss, with the robust slope."""
        return trend(self._times(), self._column("loss"))

    def loss_windows(self, count: int = 20) -> list[Trend]:
        """Return the trend of the loss in each of `count` parts of the history."""
        return windowed(self._times(), self._column("loss"), count)

    def loss_spikes(self) -> Spikes:
        """Return where the loss suddenly rose."""
        return spikes(self._column("loss"))

    def loss_changes(self) -> Changes:
        """Return where the loss changed for good."""
        return change_points(self._column("loss"))

    def resource_patterns(self) -> dict[str, Pattern]:
        """Return how processor and GPU memory were used."""
        times = self._times()
        used = {"cpu": self._column("cpu_percent"), "gpu": self._gpu_memory()}
        return {name: pattern(times, values) for name, values in used.items()}

    def _column(self, name: str) -> Floats:
        """Return one value of each row; NaN where it is absent."""
        return np.array([_number(row.get(name)) for row in self.metrics_history], dtype=np.float64)

    def _gpu_memory(self) -> Floats:
        """Return the memory over all GPUs of each row, numbers in the unit they are given in."""
        taken = (total_in_use(row.get("gpu_memory"), unit=1.0) for row in self.metrics_history)
        return np.array([np.nan if each is None else each for each in taken], dtype=np.float64)

    def _times(self) -> Floats:
        """Return the time of each row in seconds; the row numbers if no row has a time."""
        times = np.array([_seconds(row.get("timestamp")) for row in self.metrics_history], dtype=np.float64)
        return times if np.isfinite(times).any() else np.arange(len(times), dtype=np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _seconds(value: Any) -> float:
    """Return a time as seconds since 1970; NaN for anything else."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
        except ValueError:
            return _number(value)
    return value.timestamp() if isinstance(value, datetime) else _number(value)


def _stats(values: Floats) -> dict[str, float | None]:
    """Return mean, standard deviation (of the population), maximum and minimum of the finite values."""
    found = figures(values[np.isfinite(values)])
    return {name: found.get(name) for name in ("mean", "std", "max", "min")}
