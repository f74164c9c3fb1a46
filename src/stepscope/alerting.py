"""Alerting from inside a program, under the names that the documents use."""

from __future__ import annotations

from stepscope.trackers.alerting.alert_system import AlertSystem
from stepscope.trackers.alerting.performance_alerting import PerformanceAlerting

__all__ = ["AlertSystem", "PerformanceAlerting"]
