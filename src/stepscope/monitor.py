"""Monitoring classes for use inside a training loop, under compatible names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.trackers.monitor.gpu_monitor import GPUMonitor
from stepscope.trackers.monitor.metrics_collector import MetricsCollector
from stepscope.trackers.monitor.real_time_monitor import RealTimeMonitor
from stepscope.trackers.monitor.resources import monitor_resources
from stepscope.trackers.monitor.system_monitor import SystemMonitor
from stepscope.trackers.monitor.training_callback import TrainingMonitorCallback
from stepscope.trackers.monitor.training_metrics import TrainingMetrics
from stepscope.trackers.monitor.training_monitor import TrainingMonitor

if TYPE_CHECKING:
    from stepscope.exporters.prometheus.monitor import PrometheusMonitor

__all__ = [
    "GPUMonitor",
    "MetricsCollector",
    "PrometheusMonitor",
    "RealTimeMonitor",
    "SystemMonitor",
    "TrainingMetrics",
    "TrainingMonitor",
    "TrainingMonitorCallback",
    "monitor_resources",
]


def __getattr__(name: str) -> Any:
    """Load the one class that needs a third-party module when it is asked for."""
    if name == "PrometheusMonitor":
        from stepscope.exporters.prometheus.monitor import PrometheusMonitor

        return PrometheusMonitor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
