"""Trackio: what `trackio.log` is handed, at Trackio's own step, and the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.catching.following import CallFollower

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches

SOURCE = "trackio"
MODULES = ("trackio.run",)


def catch(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Wrap the methods of Trackio's run."""
    record = caught.recorder(SOURCE)

    def log(original: Any) -> Any:
        def call(self: Any, metrics: Any, step: Any = None, *more: Any, **named: Any) -> Any:
            at = getattr(self, "_next_step", None) if step is None else step
            try:
                return original(self, metrics, step, *more, **named)
            finally:
                if isinstance(metrics, dict):
                    record(metrics, at)

        return call

    patches.wrap(module.Run, "log", log, must=True)
    follower = CallFollower(caught, SOURCE, patches)
    follower.follow(module.Run, "__init__", lambda given: caught.config(SOURCE, given["config"] or {}))
    follower.things(module.Run, {"log_artifact": ("artifact", "name", "artifact_or_path")})
