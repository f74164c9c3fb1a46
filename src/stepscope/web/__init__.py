"""The page and its server."""

from __future__ import annotations

from typing import Any

__all__ = ["MonitoringDashboard"]


def __getattr__(name: str) -> Any:
    """Load what is asked for: the command line needs no dashboard class, and a script no server."""
    if name != "MonitoringDashboard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stepscope.web.dashboard import MonitoringDashboard

    return MonitoringDashboard
