"""The metrics of one training step, under a compatible module name."""

from __future__ import annotations

from stepscope.monitor import MetricsCollector, TrainingMetrics

__all__ = ["MetricsCollector", "TrainingMetrics"]
