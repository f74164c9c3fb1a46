"""The metrics of one training step, under the module name that the documents use."""

from __future__ import annotations

from stepscope.monitor import MetricsCollector, TrainingMetrics

__all__ = ["MetricsCollector", "TrainingMetrics"]
