"""SwanLab: what `swanlab.log` is handed, at SwanLab's own step, and the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.catching.following import CallFollower

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches

SOURCE = "swanlab"
MODULES = ("swanlab.sdk.internal.run",)


def catch(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Wrap the methods of SwanLab's run: `_log_impl` is what all ways of logging call."""
    record = caught.recorder(SOURCE, joint="/")

    def log(given: dict[str, Any]) -> None:
        step = given["step"]
        if isinstance(given["data"], dict):
            record(given["data"], given["self"]._ctx._global_step if step is None else step)  # noqa: SLF001 - its own

    def config(given: dict[str, Any]) -> None:
        caught.config(SOURCE, dict(given["self"]))

    follower = CallFollower(caught, SOURCE, patches)
    follower.follow(module.Run, "_log_impl", log, must=True)
    follower.follow(module.Config, "_flush", config)  # after each change
