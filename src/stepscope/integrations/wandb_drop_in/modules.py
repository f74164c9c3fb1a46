"""The submodules of `wandb` that scripts and frameworks import; one of another name holds unknown names only."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepscope.integrations.wandb_drop_in import errors, library, media, plots
from stepscope.integrations.wandb_drop_in.config import RunConfig
from stepscope.integrations.wandb_drop_in.run import WandbRun
from stepscope.integrations.wandb_drop_in.settings import Settings
from stepscope.integrations.wandb_drop_in.starting import init
from stepscope.integrations.wandb_drop_in.summary import Summary
from stepscope.integrations.wandb_drop_in.unknown import unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = "wandb"
TYPES = media.BY_NAME
CONTENTS: dict[str, dict[str, Any]] = {
    "sdk": {"init": init, "Config": RunConfig, "Settings": Settings},
    "sdk.lib": {"RunDisabled": WandbRun, "SummaryDisabled": Summary},
    "sdk.lib.config_util": {"ConfigError": errors.ConfigError},
    "sdk.lib.runid": {"generate_id": library.generate_id},
    "sdk.wandb_run": {"Run": WandbRun},
    "sdk.wandb_config": {"Config": RunConfig},
    "sdk.wandb_settings": {"Settings": Settings},
    "sdk.wandb_summary": {"Summary": Summary},
    "sdk.wandb_alerts": {"AlertLevel": library.AlertLevel},
    "sdk.data_types": TYPES,
    "wandb_run": {"Run": WandbRun},
    "data_types": TYPES,
    "errors": errors.BY_NAME,
    "errors.errors": errors.BY_NAME,
    "errors.term": {name: getattr(library, name) for name in ("termlog", "termwarn", "termerror", "termsetup")},
    "util": {"generate_id": library.generate_id},
    "plot": {**plots.DRAWERS, "plot_table": plots.plot_table, "visualize": plots.visualize},
}
"""What each submodule has; its other names are unknown ones."""


_made: dict[str, ModuleType] = {}


def submodule(place: str) -> ModuleType | None:
    """Return a submodule that has something in it, by its name below `wandb.`; None for any other."""
    if place not in CONTENTS:
        return None
    if place not in _made:
        _made[place] = ModuleType(f"{ROOT}.{place}")
        _fill(_made[place], place)
    return _made[place]


def _fill(module: ModuleType, place: str) -> None:
    def absent(name: str) -> Any:
        return submodule(f"{place}.{name}") or unknown(f"{place}.{name}")

    vars(module).update(CONTENTS.get(place, {}), __getattr__=absent)


class Submodules(MetaPathFinder, Loader):
    """Finds every name below `wandb.`, so that no import of one fails in the middle of a training."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Return how to make a submodule; None for every other module."""
        del path, target
        return ModuleSpec(fullname, self, is_package=True) if fullname.startswith(f"{ROOT}.") else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill in what the submodule has."""
        _fill(module, module.__name__.removeprefix(f"{ROOT}."))


def serve_submodules() -> None:
    """Let submodules be imported, from now on."""
    if not any(isinstance(finder, Submodules) for finder in sys.meta_path):
        sys.meta_path.insert(0, Submodules())
