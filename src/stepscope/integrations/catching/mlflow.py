"""MLflow: metrics and parameters of its client, which `mlflow.log_metric` and autologging call too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.catching.following import CallFollower

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches

SOURCE = "mlflow"
MODULES = ("mlflow.tracking.client",)
THINGS = {
    "log_text": ("text", "artifact_file", "text"),
    "log_dict": ("text", "artifact_file", ""),
    "log_figure": ("figure", "artifact_file", "figure"),
    "log_table": ("table", "artifact_file", ""),
    "log_artifact": ("artifact", "local_path", ""),
    "log_artifacts": ("artifact", "local_dir", ""),
}
"""Methods for what is no number: kind, and the arguments that are the name and the value."""


def catch(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Wrap the methods of MlflowClient."""
    client, record = module.MlflowClient, caught.recorder(SOURCE)

    def log_metric(given: dict[str, Any]) -> None:
        record({given["key"]: given["value"]}, given["step"] or 0)

    def log_batch(given: dict[str, Any]) -> None:
        rows: dict[int, dict[str, Any]] = {}
        for metric in given["metrics"] or ():
            rows.setdefault(metric.step or 0, {})[metric.key] = metric.value
        for step, row in rows.items():
            record(row, step)
        if given["params"]:
            caught.config(SOURCE, {param.key: param.value for param in given["params"]})

    def log_image(given: dict[str, Any]) -> None:
        name = given["key"] or given["artifact_file"] or "image"
        caught.note(SOURCE, name, given["image"], given["step"] or 0, "image")

    follower = CallFollower(caught, SOURCE, patches)
    follower.follow(client, "log_metric", log_metric, must=True)
    follower.follow(client, "log_batch", log_batch, must=True)
    follower.follow(client, "log_param", lambda given: caught.config(SOURCE, {given["key"]: given["value"]}))
    follower.follow(client, "log_image", log_image)
    follower.things(client, THINGS)
