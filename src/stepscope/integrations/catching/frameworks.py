"""The loggers of frameworks: Lightning's trainer, the Trainer of Transformers, and Accelerate.

Where one of their loggers writes to a tracker that is caught, its values are caught there, under the names that it
gives them. What goes to none of those (a CSV file, the console) is caught here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.catching.following import CallFollower

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.integrations.catching.caught import Caught
    from stepscope.integrations.torch.patches import Patches

LIGHTNING = tuple(
    f"{package}.trainer.connectors.logger_connector.logger_connector"
    for package in ("lightning.pytorch", "pytorch_lightning")
)
"""The module of Lightning, under both of its names."""
LOGGERS = frozenset(
    (
        *("TensorBoardLogger", "WandbLogger", "MLFlowLogger", "CometLogger", "SwanLabLogger", "TrackioLogger"),
        *("AimLogger", "StepscopeLogger"),
        *("TensorBoardCallback", "WandbCallback", "MLflowCallback", "CometCallback", "SwanLabCallback"),
        *("TrackioCallback", "AimCallback", "GPUMonitoringCallback"),
        *("TensorBoardTracker", "WandBTracker", "MLflowTracker", "CometMLTracker", "SwanLabTracker"),
        *("TrackioTracker", "AimTracker", "StepscopeTracker"),
    )
)
"""Classes of loggers whose values are caught elsewhere, or recorded by Stepscope itself."""
SUMMARY = ("train_", "total_flos")
"""Values of a Trainer whose names start so are recorded below `trainer/`, as our callback does."""


def is_caught_elsewhere(loggers: Any) -> bool:
    """Return whether one of these loggers writes to a tracker that is caught."""
    return any(kind.__name__ in LOGGERS for logger in loggers for kind in type(logger).__mro__)


def catch_lightning(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Catch what `self.log` hands to Lightning's loggers, also if there are none."""
    record = caught.recorder("lightning")

    def log_metrics(given: dict[str, Any]) -> None:
        trainer, metrics, step = given["self"].trainer, dict(given["metrics"]), given["step"]
        if not trainer.is_global_zero or not metrics or is_caught_elsewhere(trainer.loggers):
            return
        if step is None and (own := metrics.pop("step", None)) is not None:
            step = int(own)
        elif step is None:
            metrics.setdefault("epoch", trainer.current_epoch)
            step = trainer.fit_loop.epoch_loop._batches_that_stepped  # noqa: SLF001 - the step of Lightning's loggers
        record(metrics, step)

    CallFollower(caught, "lightning", patches).follow(module._LoggerConnector, "log_metrics", log_metrics, must=True)  # noqa: SLF001


def catch_transformers(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Catch what a Trainer reports."""
    record = caught.recorder("transformers")

    def log(given: dict[str, Any]) -> None:
        trainer = given["self"]
        if not trainer.is_world_process_zero() or is_caught_elsewhere(trainer.callback_handler.callbacks):
            return
        below = (*SUMMARY, "loss") if caught.has_own_losses else SUMMARY
        logs = {f"trainer/{name}" if name.startswith(below) else name: value for name, value in given["logs"].items()}
        record(logs, trainer.state.global_step)

    CallFollower(caught, "transformers", patches).follow(module.Trainer, "log", log, must=True)


def catch_accelerate(module: ModuleType, caught: Caught, patches: Patches) -> None:
    """Catch what `accelerator.log` is handed."""
    record = caught.recorder("accelerate")

    def take(accelerator: Any, values: Any, step: Any) -> None:
        if accelerator.is_main_process and not is_caught_elsewhere(accelerator.trackers):
            record(dict(values), step)

    walled = caught.walled("accelerate", take)

    def log(original: Any) -> Any:  # not by a CallFollower: a decorator of Accelerate hides the names of the arguments
        def call(self: Any, values: Any, step: Any = None, *more: Any, **named: Any) -> Any:
            try:
                return original(self, values, step, *more, **named)
            finally:
                walled(self, values, step)

        return call

    patches.wrap(module.Accelerator, "log", log, must=True)
