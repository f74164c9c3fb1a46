"""Statistics of training metrics, under compatible names."""

from __future__ import annotations

from stepscope.trackers.metrics.grpo_metrics import GRPOMetricsTracker
from stepscope.trackers.metrics.metric_tracker import MetricTracker
from stepscope.trackers.metrics.score_distribution import ScoreDistributionTracker
from stepscope.trackers.metrics.training_logger import TrainingLogger

__all__ = ["GRPOMetricsTracker", "MetricTracker", "ScoreDistributionTracker", "TrainingLogger"]
