"""Everything under W&B's names: what `stepscope.wandb`, and `wandb` under `stepscope run --as-wandb`, consist of."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stepscope.integrations.wandb_drop_in import plots as plot
from stepscope.integrations.wandb_drop_in.artifacts import Artifact
from stepscope.integrations.wandb_drop_in.config import RunConfig as Config
from stepscope.integrations.wandb_drop_in.errors import BeforeInit
from stepscope.integrations.wandb_drop_in.errors import WandbCommError as CommError
from stepscope.integrations.wandb_drop_in.errors import WandbError as Error
from stepscope.integrations.wandb_drop_in.errors import WandbUsageError as UsageError
from stepscope.integrations.wandb_drop_in.library import (
    AlertLevel,
    alert,
    define_metric,
    finish,
    join,
    link_model,
    log,
    log_artifact,
    log_model,
    login,
    mark_preempting,
    require,
    restore,
    save,
    setup,
    teardown,
    termerror,
    termlog,
    termsetup,
    termwarn,
    unwatch,
    use_artifact,
    use_model,
    watch,
)
from stepscope.integrations.wandb_drop_in.media import Audio, Html, Image, Molecule, Object3D, Plotly, Video
from stepscope.integrations.wandb_drop_in.media import LoggedHistogram as Histogram
from stepscope.integrations.wandb_drop_in.media import LoggedTable as Table
from stepscope.integrations.wandb_drop_in.plots import plot_table, visualize
from stepscope.integrations.wandb_drop_in.run import WandbRun as Run
from stepscope.integrations.wandb_drop_in.run import attach
from stepscope.integrations.wandb_drop_in.settings import Settings
from stepscope.integrations.wandb_drop_in.starting import ACTIVE, init
from stepscope.integrations.wandb_drop_in.unknown import unknown

if TYPE_CHECKING:
    from stepscope.integrations.wandb_drop_in.summary import Summary

    run: Run | None
    config: Config
    summary: Summary

__version__ = "0.31.0"
"""The version of W&B whose names these are."""
__all__ = [
    "AlertLevel",
    "Artifact",
    "Audio",
    "CommError",
    "Config",
    "Error",
    "Histogram",
    "Html",
    "Image",
    "Molecule",
    "Object3D",
    "Plotly",
    "Run",
    "Settings",
    "Table",
    "UsageError",
    "Video",
    "alert",
    "attach",
    "define_metric",
    "finish",
    "init",
    "join",
    "link_model",
    "log",
    "log_artifact",
    "log_model",
    "login",
    "mark_preempting",
    "plot",
    "plot_table",
    "require",
    "restore",
    "save",
    "setup",
    "teardown",
    "termerror",
    "termlog",
    "termsetup",
    "termwarn",
    "unwatch",
    "use_artifact",
    "use_model",
    "visualize",
    "watch",
]

_attach = attach


def __getattr__(name: str) -> Any:
    """Return what follows the current run, what is loaded at its first use, and an unknown name."""
    if name == "run":
        return ACTIVE.run
    if name in {"config", "summary"}:
        return BeforeInit(name) if ACTIVE.run is None else getattr(ACTIVE.run, name)
    if name == "Api":  # loads the store's reader
        return importlib.import_module("stepscope.integrations.wandb_drop_in.public_api").Api
    if name == "patched":
        return {"tensorboard": [], "keras": [], "gym": []}
    submodule = importlib.import_module("stepscope.integrations.wandb_drop_in.modules").submodule
    return submodule(name) or unknown(name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
