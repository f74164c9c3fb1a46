"""One fit of a Lightning trainer, recorded in a run: phases, steps, samples; shared by all of its callbacks."""

from __future__ import annotations

import functools
from time import monotonic_ns
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stepscope.integrations.lightning.action_phases import ActionPhases
from stepscope.integrations.target_run import nameless_id, take_run
from stepscope.integrations.throughput import Load, Totals
from stepscope.integrations.torch.batch import OpenStep
from stepscope.integrations.torch.dataset_transforms import DatasetTransforms
from stepscope.session import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.session.run import Run

EVALUATION = "evaluation"


class FitRecording:
    """The steps and phases of one fit."""

    def __init__(self, run: Run, *, owned: bool, is_empty: Callable[[str], bool]) -> None:
        """Record into `run`, and end it with the fit if it is `owned`; `is_empty` as in `ActionPhases`."""
        self.run, self._owned = run, owned
        self.actions = ActionPhases(run.phase, is_empty=is_empty)
        self.transforms = DatasetTransforms(functools.partial(self.actions.charged, "data", waits=False))
        self._transformed = 0
        self.epoch = Totals()
        """Batches of the epoch so far, on this rank, without the time of evaluation and checkpoints."""
        self._batch_end = 0
        self.members: list[object] = []
        """The callbacks that share this recording; the first one reports the trainer's events to it."""
        self._global_step = 0
        self._index: int | None = None
        """Index of the next step, if it does not follow the last one."""
        self.step = OpenStep()
        self._evaluated_at = 0
        self._paused_before = 0
        self._hooks: list[Any] = []
        self._loggers: list[Any] = []

    def fit_begins(self, trainer: Any) -> None:
        """Start at the trainer's step, which is not 0 after a resume."""
        self.actions.active = True
        self._global_step = trainer.global_step
        loop = getattr(trainer.fit_loop, "epoch_loop", None)
        self._index = getattr(loop, "_batches_that_stepped", trainer.global_step)  # the step of its loggers
        # No action of the trainer reports loggers, nor optimizers that the module calls itself.
        if not trainer.lightning_module.automatic_optimization:
            for optimizer in trainer.optimizers:
                self._hooks.append(optimizer.register_step_pre_hook(lambda *_: self.actions.enter("optimizer")))
                self._hooks.append(optimizer.register_step_post_hook(lambda *_: self.actions.leave("optimizer")))
        for logger in trainer.loggers:
            logger.log_metrics = self.actions.charged("logging", logger.log_metrics)
            self._loggers.append(logger)

    def epoch_begins(self) -> None:
        """Reset the figures of the epoch."""
        self.actions.forget()
        self._paused_before = self.actions.paused_ns
        self.epoch, self._batch_end = Totals(), monotonic_ns()

    def batch_ended(self, trainer: Any, outputs: Any, batch: Any) -> None:
        """Count a batch, and end the step if the optimizer has stepped."""
        samples = self.step.add_batch(batch)
        # Lightning passes the loss as the module returned it, before it is divided for the accumulation.
        self.step.add_loss(outputs.get("loss") if isinstance(outputs, dict) else outputs)
        self._add_transforms()
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self.end_step(trainer)
        now, paused = monotonic_ns(), self.actions.paused_ns
        self.epoch.add(Load(max(0, now - self._batch_end - (paused - self._paused_before)) / 1e9, samples))
        self._batch_end, self._paused_before = now, paused

    def _add_transforms(self) -> None:
        """Record the time of the dataset's transforms, if measurable, and of the trainer's hooks."""
        hooks, self._transformed = self.actions.transform_ns - self._transformed, self.actions.transform_ns
        batches = self.transforms.take()
        for nanoseconds in batches or ([] if self.transforms.measured else [0]):
            self.actions.waits["transform"].add(nanoseconds + hooks)

    def end_step(self, trainer: Any) -> None:
        """End a step: one step of the optimizer, however many batches it took."""
        with self.run.step(self.step.samples, self._index):
            self.run.log(self.step.row(trainer.current_epoch))
        self._index, self.step = None, OpenStep()

    def epoch_ended(self, trainer: Any) -> None:
        """End a step whose batches were not followed by a step of the optimizer."""
        if self.step.batches:
            self.end_step(trainer)

    def evaluation_begins(self) -> None:
        """Open the phase, so that the watcher does not report a hang."""
        self._evaluated_at = monotonic_ns()
        self.actions.enter(EVALUATION)

    def evaluation_ended(self, trainer: Any) -> None:
        """Close the phase."""
        self.actions.leave(EVALUATION)
        seconds = (monotonic_ns() - self._evaluated_at) / 1e9
        self.run.own_event(EVALUATION, seconds=seconds, epoch=trainer.current_epoch)

    def close(self, error: BaseException | None = None) -> None:
        """Restore the trainer's objects, and end the run if it is ours. May be called again."""
        self.actions.detach()
        self.transforms.detach()
        while self._hooks:
            self._hooks.pop().remove()
        while self._loggers:
            del self._loggers.pop().log_metrics
        if self._owned:
            self.run.finish(error)


def is_empty(trainer: Any, action: str) -> bool:
    """Return whether an action calls a hook that neither module, data module nor callback overrides."""
    kind, bracket, rest = action.partition("]")
    owner, _, hook = rest.rpartition(".")
    candidates: list[Any] = []
    if kind == "[Callback":
        candidates = [callback for callback in trainer.callbacks if callback.state_key == owner]
    elif kind in {"[LightningModule", "[LightningDataModule"}:
        candidates = [trainer.lightning_module if kind == "[LightningModule" else trainer.datamodule]
    return bool(bracket) and bool(candidates) and not any(_overrides(type(one), hook) for one in candidates)


def _overrides(kind: type, hook: str) -> bool:
    """Return whether a class overrides a hook of Lightning's base classes."""
    owner = next((one for one in kind.__mro__ if hook in vars(one)), None)
    return owner is not None and not (
        owner.__module__.startswith(("lightning.pytorch.core", "pytorch_lightning.core"))
        or owner.__module__ in {"lightning.pytorch.callbacks.callback", "pytorch_lightning.callbacks.callback"}
    )


def _agree(trainer: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with which all ranks open the same run: rank 0 sends its id, unless a launcher names the job.

    Lightning starts its ranks itself without a common name; it broadcasts its own paths in the same way.
    """
    new, running = nameless_id(options.get("project")), current.CURRENT.run
    if new is None:
        return {}
    return {"run_id": trainer.strategy.broadcast(running.id if running.recording else new), "resume": True}


def join(trainer: Any, member: object, **options: Any) -> FitRecording:
    """Return the recording of a trainer for one of its callbacks; the first starts it with `options` of `init`."""
    recording = RECORDINGS.get(trainer)
    if recording is None:
        logger = next((logger for logger in trainer.loggers if hasattr(logger, "stepscope_run")), None)
        if trainer.world_size > 1:
            options = {**options, **_agree(trainer, options)}
        run, owned = take_run(**options) if logger is None else (logger.begin(**options), False)
        recording = FitRecording(run, owned=owned, is_empty=functools.partial(is_empty, trainer))
        RECORDINGS[trainer] = recording
        recording.actions.attach(trainer.profiler)
        recording.transforms.attach()
    if member not in recording.members:
        recording.members.append(member)
    return recording


def leave(trainer: Any, member: object, error: BaseException | None = None) -> None:
    """Remove a callback from the recording, which ends with the last one or with an error."""
    recording = RECORDINGS.get(trainer)
    if recording is None:
        return
    if member in recording.members:
        recording.members.remove(member)
    if error is not None or not recording.members:
        RECORDINGS.pop(trainer, None)
        recording.close(error)


RECORDINGS: WeakKeyDictionary[Any, FitRecording] = WeakKeyDictionary()
"""The recording of each trainer, which all of its callbacks share."""
