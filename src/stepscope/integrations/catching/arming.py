"""Wrap the trackers that a script imports, and restore them when the run ends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.core.after_import import AfterImport
from stepscope.integrations.catching import (
    aim,
    comet,
    frameworks,
    mlflow,
    neptune_scale,
    swanlab,
    tensorboard,
    trackio,
    wandb,
)
from stepscope.integrations.catching.caught import Caught
from stepscope.integrations.torch.patches import Patches
from stepscope.session import current

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.session.run import Run

TRACKERS: tuple[Any, ...] = (wandb, tensorboard, mlflow, trackio, swanlab, aim, neptune_scale, comet)
"""Each has MODULES, the modules of the tracker to wait for, and `catch`, which wraps what is in one."""
CATCHES = {
    **{name: tracker.catch for tracker in TRACKERS for name in tracker.MODULES},
    **dict.fromkeys(frameworks.LIGHTNING, frameworks.catch_lightning),
    "transformers.trainer": frameworks.catch_transformers,
    "accelerate.accelerator": frameworks.catch_accelerate,
}
"""By module: what wraps it."""


class Catching:
    """Everything that is caught for one run."""

    def __init__(self, run: Run) -> None:
        """Prepare; nothing is wrapped yet."""
        self._run = run
        self._caught = Caught(run, partial(current.CURRENT.later, run=run))
        self._patches, self._imports = Patches(), AfterImport()

    def attach(self) -> None:
        """Wrap the trackers that are imported, and others as soon as they are."""
        for name, catch in CATCHES.items():
            self._imports.call(name, partial(self._wrap, catch))

    def _wrap(self, catch: Any, module: ModuleType) -> None:
        try:
            catch(module, self._caught, self._patches)
        except Exception as error:  # noqa: BLE001 - an unusual version of a tracker must not stop its import
            self._caught.complain(module.__name__, error)
        if "log" not in vars(self._run):  # from now on the script may hand the same value to both
            self._run.log = self._caught.script_log(self._run.log)  # type: ignore[method-assign]

    def detach(self) -> None:
        """Record what trackers hold back, and restore them. May be called again."""
        for end in self._caught.at_end:
            end()
        self._imports.stop()
        self._patches.restore()
        vars(self._run).pop("log", None)


def catch(run: Run) -> Catching:
    """Catch what the script hands to other trackers, from now on; returns what ends it."""
    made = Catching(run)
    made.attach()
    return made
