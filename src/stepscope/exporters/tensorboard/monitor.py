"""A monitor that writes TensorBoard event files, with a compatible name and tags."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from stepscope.exporters.tensorboard.summary import SummaryWriter, numbers_in

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from typing_extensions import Self


class TensorBoardMonitor:
    """Write metrics of the training, of the machine and of a model's parameters to an event file.

    Works without TensorBoard and TensorFlow; any TensorBoard reads what it writes. No method raises into the training:
    NaN and infinities are written as such, a tensor without a finite value is left out and said once.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        """Write into a folder; monitors in one folder have files of their own."""
        self.writer = SummaryWriter(log_dir)
        self.start_time = time.time()
        """Seconds since 1970 UTC."""

    def log_training_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write numbers as `training/<key>`."""
        for tag, value in numbers_in(metrics, "training"):
            self.writer.add_scalar(tag, value, step)

    def log_resource_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write numbers as `resources/<key>`, those of dictionaries in it as `resources/<key>/<subkey>`, at any depth.

        What `monitor_resources()` returns can be given as it is.
        """
        for tag, value in numbers_in(metrics, "resources"):
            self.writer.add_scalar(tag, value, step)

    def log_model_parameters(self, step: int, model: Any) -> None:
        """Write histograms `parameters/<name>` and `gradients/<name>` of the parameters that have a gradient."""
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.writer.add_histogram(f"parameters/{name}", parameter.data, step)
                self.writer.add_histogram(f"gradients/{name}", parameter.grad.data, step)

    def flush(self) -> None:
        """Write what waits to the file."""
        self.writer.flush()

    def close(self) -> None:
        """Write what waits and close the file; may be called again."""
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
