"""Statistics of training metrics, under the name that the documents use."""

from __future__ import annotations

from stepscope.trackers.metric_tracker import MetricTracker

__all__ = ["MetricTracker"]
