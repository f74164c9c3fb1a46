"""The classes of Lightning that ours derive from, from whichever of its two packages the program uses."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def lightning_package(modules: Mapping[str, Any] = sys.modules) -> Any:
    """Return Lightning's package: the one among the loaded `modules`, else the first that is installed.

    Raises:
        StepscopeError: neither is installed.
    """
    loaded = [name for name in PACKAGES if name in modules]
    problem = ""
    for name in loaded or PACKAGES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            problem = problem or str(error)
    raise StepscopeError("use the Lightning callbacks", problem, "pip install 'stepscope[lightning]'")


PACKAGE = lightning_package()
Callback: Any = PACKAGE.Callback
Logger: Any = importlib.import_module(f"{PACKAGE.__name__}.loggers").Logger
