"""Neptune Scale: metrics, series of text, histograms, files and the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.catching.following import CallFollower

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches

SOURCE = "neptune"
MODULES = ("neptune_scale.api.run",)


def catch(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Wrap the methods of Neptune's run; a fractional step is recorded as the whole one below it."""
    record = caught.recorder(SOURCE)

    def noting(argument: str, kind: str = "") -> Any:
        def note(given: dict[str, Any]) -> None:
            for name, value in given[argument].items():
                caught.note(SOURCE, name, value, given.get("step"), kind)

        return note

    follower = CallFollower(caught, SOURCE, patches)
    follower.follow(module.Run, "log_metrics", lambda given: record(given["data"], given["step"]), must=True)
    follower.follow(module.Run, "log_configs", lambda given: caught.config(SOURCE, given["data"] or {}))
    follower.follow(module.Run, "log_string_series", noting("data", "text"))
    follower.follow(module.Run, "log_histograms", noting("histograms"))
    follower.follow(module.Run, "log_files", noting("files", "file"))
    follower.follow(module.Run, "assign_files", noting("files", "file"))
