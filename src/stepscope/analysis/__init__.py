"""Pure functions: arrays in, findings out. Nothing here reads a run, a clock or a device. Faces load when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from stepscope.analysis.performance import PerformanceAnalyzer
    from stepscope.core.trace import Trace

    def read_trace(path: str | os.PathLike[str]) -> Trace:
        """Read the first trace in a file: see `stepscope.importers.chrome_trace`."""


__all__ = ["PerformanceAnalyzer", "read_trace"]


def __getattr__(name: str) -> Any:
    """Load a face, and numpy behind it, when it is first asked for."""
    if name == "PerformanceAnalyzer":
        from stepscope.analysis.performance import PerformanceAnalyzer

        return PerformanceAnalyzer
    if name == "read_trace":  # an importer's: this room takes arrays, and only passes the name on
        return importlib.import_module("stepscope.importers.chrome_trace").read_trace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
