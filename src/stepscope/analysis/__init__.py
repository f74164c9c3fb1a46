"""Pure functions: arrays in, findings out. Nothing here reads a run, a clock or a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.moved import forward
from stepscope.core.provided import provided

if TYPE_CHECKING:
    import os

    from stepscope.analysis.performance import PerformanceAnalyzer
    from stepscope.core.trace import Trace

    def read_trace(path: str | os.PathLike[str]) -> Trace:
        """Read the first trace in a file: see `stepscope.importers.traces.chrome_trace`."""


__all__ = ["PerformanceAnalyzer", "read_trace"]

forward(
    __name__,
    {
        "anomalies": "series.anomalies",
        "change_points": "series.change_points",
        "comparison": "compare.comparison",
        "forecast": "series.forecast",
        "gate": "compare.gate",
        "leak": "series.leak",
        "patterns": "series.patterns",
        "recording": "compare.recording",
        "sizing": "cost.sizing",
        "spikes": "series.spikes",
        "trace_summary": "trace.summary",
        "trend": "series.trend",
    },
)


def __getattr__(name: str) -> Any:
    """Load a public name, and numpy with it, at its first use."""
    if name == "PerformanceAnalyzer":
        from stepscope.analysis.performance import PerformanceAnalyzer

        return PerformanceAnalyzer
    if name == "read_trace":  # a function of an importer, for users who look for it here
        return provided("read_trace")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
