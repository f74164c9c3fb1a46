"""Statistics of training metrics, under the names that the documents use."""

from __future__ import annotations

from stepscope.trackers.grpo_metrics import GRPOMetricsTracker
from stepscope.trackers.metric_tracker import MetricTracker
from stepscope.trackers.score_distribution import ScoreDistributionTracker
from stepscope.trackers.training_logger import TrainingLogger

__all__ = ["GRPOMetricsTracker", "MetricTracker", "ScoreDistributionTracker", "TrainingLogger"]
