"""Aim: what `Run.track` is handed; the values of a context, such as a subset, stand before the name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.catching.following import CallFollower

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches

SOURCE = "aim"
MODULES = ("aim.sdk.run",)


def catch(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Wrap the methods of Aim's run; without a step, Aim counts the values of each name and context."""
    record = caught.recorder(SOURCE)
    counts: dict[tuple[int, str], int] = {}

    def track(given: dict[str, Any]) -> None:
        self, value, name, context = given["self"], given["value"], given["name"], given["context"] or {}
        values = value if isinstance(value, dict) else {name: value}
        named = {"/".join([*map(str, context.values()), str(key)]): one for key, one in values.items()}
        for key, one in named.items():
            last = counts.get((id(self), key), -1)
            step = last + 1 if given["step"] is None else given["step"]
            counts[id(self), key] = max(last, step)
            record({key: one}, step)

    def config(given: dict[str, Any]) -> None:
        value = given.get("val")
        caught.config(SOURCE, value if isinstance(value, dict) else {str(given["key"]): value})

    follower = CallFollower(caught, SOURCE, patches)
    follower.follow(module.Run, "track", track, must=True)
    follower.follow(module.Run, "__setitem__", config)
