"""Callbacks for Lightning, Transformers and Accelerate. Importing this loads none of them: using a class does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.integrations.huggingface.accelerate import StepscopeTracker
    from stepscope.integrations.huggingface.transformers import GPUMonitoringCallback
    from stepscope.integrations.lightning.logger import StepscopeLogger
    from stepscope.integrations.lightning.profiler import ProfilerCallback
    from stepscope.integrations.lightning.resources import ResourceMonitorCallback
    from stepscope.integrations.lightning.throughput import ThroughputMonitorCallback

_HOMES = {
    "GPUMonitoringCallback": "huggingface.transformers",
    "ProfilerCallback": "lightning.profiler",
    "ResourceMonitorCallback": "lightning.resources",
    "StepscopeLogger": "lightning.logger",
    "StepscopeTracker": "huggingface.accelerate",
    "ThroughputMonitorCallback": "lightning.throughput",
}

__all__ = [
    "GPUMonitoringCallback",
    "ProfilerCallback",
    "ResourceMonitorCallback",
    "StepscopeLogger",
    "StepscopeTracker",
    "ThroughputMonitorCallback",
    "hydra_arguments",
    "register",
]


def register(framework: str = "transformers") -> None:
    """Make the name "stepscope" known: to `report_to` of Transformers, or to `log_with` of Accelerate.

    Args:
        framework: transformers or accelerate; call this before creating the Trainer or Accelerator.
    """
    importlib.import_module(f"stepscope.integrations.huggingface.{framework}").register()


def hydra_arguments(arguments: Sequence[str], group: str = "callbacks") -> list[str]:
    """Return a command line that Hydra takes for one run: `callbacks=a,b` becomes `callbacks=[a,b]`.

    Hydra itself reads the first as a sweep over two runs, and refuses it without `--multirun`.

    Args:
        arguments: the command line without the program's name.
        group: the configuration group that is meant.
    """
    begin = f"{group}="
    return [
        f"{begin}[{word.removeprefix(begin)}]" if word.startswith(begin) and "," in word and "[" not in word else word
        for word in arguments
    ]


def __getattr__(name: str) -> Any:
    """Load a class, and with it its framework, when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"stepscope.integrations.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
