"""Monitoring from inside a training loop, under the names that the documents use."""

from __future__ import annotations

from stepscope.trackers.metrics_collector import MetricsCollector
from stepscope.trackers.training_metrics import TrainingMetrics
from stepscope.trackers.training_monitor import TrainingMonitor

__all__ = ["MetricsCollector", "TrainingMetrics", "TrainingMonitor"]
