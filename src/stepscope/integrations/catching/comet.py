"""Comet: metrics under their name in the context, at Comet's own step; parameters, and what else is logged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.catching.following import CallFollower

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches

SOURCE = "comet"
MODULES = ("comet_ml.experiment",)
THINGS = {
    "log_text": ("text", "", "text"),
    "log_html": ("html", "", "html"),
    "log_image": ("image", "name", "image_data"),
    "log_figure": ("figure", "figure_name", "figure"),
    "log_audio": ("audio", "file_name", "audio_data"),
    "log_video": ("video", "name", "file"),
    "log_table": ("table", "filename", "tabular_data"),
    "log_asset": ("file", "file_name", "file_data"),
    "log_artifact": ("artifact", "artifact", ""),
}
"""Methods for what is no number: kind, and the arguments that are the name and the value."""


def catch(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Wrap the methods of an experiment: `_log_metric` is what all ways of logging call."""
    record, experiment = caught.recorder(SOURCE), module.CometExperiment

    def log_metric(given: dict[str, Any]) -> None:
        self = given["self"]
        name = self._fullname(str(given["name"]), include_context=given["include_context"])
        record({name: given["value"]}, self.curr_step)

    def log_parameters(given: dict[str, Any]) -> None:
        prefix = f"{given['prefix']}_" if given["prefix"] else ""
        caught.config(SOURCE, {f"{prefix}{name}": value for name, value in given["parameters"].items()})

    follower = CallFollower(caught, SOURCE, patches)
    follower.follow(experiment, "_log_metric", log_metric, must=True)
    follower.follow(experiment, "_log_parameters", log_parameters)
    follower.follow(experiment, "_log_parameter", lambda given: caught.config(SOURCE, {given["name"]: given["value"]}))
    follower.things(experiment, THINGS)
