"""The page and its server."""

from __future__ import annotations

from typing import Any

__all__ = ["MonitoringDashboard"]


def __getattr__(name: str) -> Any:
    """Load the dashboard on demand: the command line does not need it."""
    if name != "MonitoringDashboard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stepscope.web.dashboard import MonitoringDashboard

    return MonitoringDashboard
