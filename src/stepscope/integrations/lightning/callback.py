"""The base class of our Lightning callbacks: they share the recording of their trainer and never raise into it."""

from __future__ import annotations

import functools
import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.config import discover, load_or_default
from stepscope.integrations.lightning.base import Callback
from stepscope.integrations.lightning.recording import join, leave
from stepscope.integrations.walls import guarded
from stepscope.recorder.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.integrations.lightning.recording import FitRecording


class MonitorCallback(Callback):  # type: ignore[misc]
    """A callback that records; does nothing if it is not `enabled`. `project` is that of a new run.

    The trainer's hooks call the methods `fit_begins` … `fit_ended`, which subclasses override as needed.
    """

    def __init__(self, *, enabled: bool, project: str | None) -> None:
        super().__init__()
        self.enabled = bool(enabled)
        self.project = project
        self.notices = Complaints()
        self.recording: FitRecording | None = None
        """The recording of this fit; None outside of one."""

    def fit_begins(self, trainer: Any, recording: FitRecording) -> None:
        """Handle the start of training."""

    def epoch_begins(self, trainer: Any, recording: FitRecording) -> None:
        """Handle the start of a training epoch."""

    def batch_ended(self, trainer: Any, recording: FitRecording, batch_index: int) -> None:
        """Handle the end of a training batch."""

    def epoch_ended(self, trainer: Any, recording: FitRecording) -> None:
        """Handle the end of a training epoch."""

    def fit_ended(self) -> None:
        """Handle the end of the fit, for any reason."""

    def _leading(self) -> FitRecording | None:
        """Return the recording if this callback reports to it, as the first that joined."""
        recording = self.recording
        return recording if recording is not None and self in recording.members[:1] else None

    @guarded
    def setup(self, trainer: Any, _pl_module: Any, stage: str) -> None:
        """Join the recording, if this is a fit."""
        if self.enabled and stage == "fit":
            self.recording = join(trainer, self, **({"project": self.project} if self.project else {}))

    @guarded
    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Begin at the trainer's step."""
        if (leading := self._leading()) is not None:
            leading.fit_begins(trainer)
        if self.recording is not None:
            self.fit_begins(trainer, self.recording)

    @guarded
    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        """Begin an epoch."""
        if (leading := self._leading()) is not None:
            leading.epoch_begins()
        if self.recording is not None:
            self.epoch_begins(trainer, self.recording)

    @guarded
    def on_before_backward(self, _trainer: Any, pl_module: Any, *_: Any) -> None:
        """Open the phase if the module calls backward itself, which the trainer does not report."""
        if (leading := self._leading()) is not None and not pl_module.automatic_optimization:
            leading.actions.enter("backward")

    @guarded
    def on_after_backward(self, _trainer: Any, pl_module: Any) -> None:
        """Close the phase."""
        if (leading := self._leading()) is not None and not pl_module.automatic_optimization:
            leading.actions.leave("backward")

    @guarded
    def on_before_optimizer_step(self, _trainer: Any, _pl_module: Any, optimizer: Any) -> None:
        """Read the learning rate."""
        if (leading := self._leading()) is not None:
            leading.step.before_optimizer(optimizer)

    @guarded
    def on_train_batch_end(self, trainer: Any, _pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count the batch."""
        if (leading := self._leading()) is not None:
            leading.batch_ended(trainer, outputs, batch)
        if self.recording is not None:
            self.batch_ended(trainer, self.recording, batch_idx)

    @guarded
    def on_validation_start(self, trainer: Any, *_: Any) -> None:
        """Open the phase; the sanity check before the training belongs to no step."""
        if (leading := self._leading()) is not None and not trainer.sanity_checking:
            leading.evaluation_begins()

    @guarded
    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        """Close the phase."""
        if (leading := self._leading()) is not None and not trainer.sanity_checking:
            leading.evaluation_ended(trainer)

    @guarded
    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        """End an epoch."""
        if (leading := self._leading()) is not None:
            leading.epoch_ended(trainer)
        if self.recording is not None:
            self.epoch_ended(trainer, self.recording)

    @guarded
    def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
        """Record the event; the checkpoint is not changed."""
        if (leading := self._leading()) is not None:
            leading.run.own_event("checkpoint", epoch=trainer.current_epoch)

    @guarded
    def on_exception(self, trainer: Any, _pl_module: Any, exception: BaseException) -> None:
        """End the fit as failed; the exception propagates."""
        self._end(trainer, exception)

    @guarded
    def teardown(self, trainer: Any, _pl_module: Any, stage: str) -> None:
        """End the fit."""
        if stage == "fit":
            self._end(trainer, None)

    def _end(self, trainer: Any, error: BaseException | None) -> None:
        recording, self.recording = self.recording, None
        if recording is not None:
            try:
                self.fit_ended()
            finally:
                leave(trainer, self, error)

    def say(self, trainer: Any, line: str) -> None:
        """Print a line on rank 0 without breaking the progress bar."""
        trainer.lightning_module.print(line)


def configured(group: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a constructor: options that are not passed come from `callbacks.<group>`, if set there."""

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        names = list(inspect.signature(init).parameters)[1:]

        @functools.wraps(init)
        def with_settings(self: object, *arguments: Any, **options: Any) -> None:
            passed = {*names[: len(arguments)], *options}
            config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
            settings = config.options(f"callbacks.{group}")
            chosen = {name: settings[name] for name in settings.keys() - passed if name in names}
            init(self, *arguments, **chosen, **options)

        return with_settings

    return decorate
