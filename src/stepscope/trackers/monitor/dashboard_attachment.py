"""The place of a monitor where a dashboard is attached: what is recorded is handed to it as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.trackers.monitor.training_metrics import TrainingMetrics

KEPT = 10_000
"""Rows that a dashboard keeps."""


class DashboardAttachment:
    """Keeps a dashboard such as `stepscope.web.MonitoringDashboard`; None until one is attached."""

    def __get__(self, owner: Any, _kind: type | None = None) -> Any:
        """Return what is attached."""
        return self if owner is None else owner.__dict__.get("dashboard")

    def __set__(self, owner: Any, part: object) -> None:
        """Attach a dashboard."""
        owner.__dict__["dashboard"] = part


def show_on(dashboard: Any, metrics: TrainingMetrics) -> None:
    """Append a row to the `metrics_data` of a dashboard, if there is one. A value on a device is not waited for."""
    rows = getattr(dashboard, "metrics_data", None)
    if not isinstance(rows, list):
        return
    loss = metrics.loss if isinstance(metrics.loss, (int, float)) else None
    rows.append(
        {"timestamp": metrics.timestamp, "step": metrics.step, "loss": loss, "gpu_memory": metrics.gpu_memory_mb}
    )
    if len(rows) > KEPT:
        del rows[: len(rows) - KEPT]
