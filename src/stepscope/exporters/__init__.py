"""Write runs in other formats: one file per format; `formats` is their table. Public classes are loaded when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepscope.exporters.prometheus.monitor import PrometheusMonitor
    from stepscope.exporters.tensorboard.monitor import TensorBoardMonitor

__all__ = ["PrometheusMonitor", "TensorBoardMonitor"]


def __getattr__(name: str) -> Any:
    """Load a public class, and the library behind it, when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    folder = name.removesuffix("Monitor").lower()
    return getattr(importlib.import_module(f"{__name__}.{folder}.monitor"), name)
