"""Alerting from inside a program, under compatible names."""

from __future__ import annotations

from stepscope.trackers.alerting.alert_system import AlertSystem
from stepscope.trackers.alerting.performance_alerting import PerformanceAlerting

__all__ = ["AlertSystem", "PerformanceAlerting"]
