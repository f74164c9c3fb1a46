"""The folder that `stepscope run --as-wandb` puts on the path: a package `wandb`, and its metadata.

Being on the path it also serves the processes that `multiprocessing` starts, which get the path of their parent.
"""

from __future__ import annotations

import importlib
import os
import sys


def stand_in() -> None:
    """Make `import wandb` mean the drop-in, in this process and in those that multiprocessing starts."""
    sys.path.insert(1, os.path.dirname(os.path.abspath(__file__)))
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    importlib.import_module("wandb")
