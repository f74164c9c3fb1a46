"""One fit of a Lightning trainer, recorded in a run: phases, steps, samples; shared by all of its callbacks."""

from __future__ import annotations

import functools
from time import monotonic_ns
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stepscope.integrations.lightning.action_phases import ActionPhases
from stepscope.integrations.target_run import nameless_id, take_run
from stepscope.integrations.throughput import Load, Totals
from stepscope.integrations.torch.batch import count_samples, count_tokens, on_host
from stepscope.integrations.torch.dataset_transforms import DatasetTransforms
from stepscope.session import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.session.run import Run

EVALUATION = "evaluation"


class Recording:
    """The steps and phases of one fit."""

    def __init__(
        self,
        run: Run,
        *,
        owned: bool = False,
        clock: Callable[[], int] = monotonic_ns,
        is_empty: Callable[[str], bool] = lambda _action: False,
    ) -> None:
        """Record into a run.

        Args:
            run: the run.
            owned: end it with the fit.
            clock: monotonic, in ns.
            is_empty: returns whether an action of the trainer does nothing.
        """
        self.run, self._owned, self._clock = run, owned, clock
        self.actions = ActionPhases(run.phase, clock, is_empty)
        self.transforms = DatasetTransforms(functools.partial(self.actions.charged, "data", waits=False))
        self._transformed = 0
        self.epoch = Totals()
        """Batches of the epoch so far, on this rank, without the time of evaluation and checkpoints."""
        self._batch_end = 0
        self.members: list[object] = []
        self._global_step = 0
        self._index: int | None = None
        """Of the next step, if it is not the one after the last."""
        self._samples: int | None = None
        self._loss: Any = None
        self._batches = 0
        self._values: dict[str, Any] = {}
        self._evaluated_at = 0
        self._paused_before = 0
        self._hooks: list[Any] = []
        self._loggers: list[Any] = []

    def leads(self, member: object) -> bool:
        """Return whether a callback leads the recording: the first that joined."""
        return bool(self.members) and self.members[0] is member

    def fit_begins(self, trainer: Any) -> None:
        """Stand where the trainer stands, which is later than 0 after a resume."""
        self.actions.active = True
        self._global_step = trainer.global_step
        loop = getattr(trainer.fit_loop, "epoch_loop", None)
        self._index = getattr(loop, "_batches_that_stepped", trainer.global_step)  # the step of its loggers
        if not trainer.lightning_module.automatic_optimization:
            self._listen(trainer.optimizers)
        for logger in trainer.loggers:  # no action of the trainer tells of them
            logger.log_metrics = self.actions.charged("logging", logger.log_metrics)
            self._loggers.append(logger)

    def _listen(self, optimizers: list[Any]) -> None:
        """Charge the steps of optimizers that the module calls itself: no action of the trainer tells of them."""
        for optimizer in optimizers:
            enter, leave = functools.partial(self._hook, "enter"), functools.partial(self._hook, "leave")
            self._hooks.append(optimizer.register_step_pre_hook(enter))
            self._hooks.append(optimizer.register_step_post_hook(leave))

    def _hook(self, what: str, *_: Any) -> None:
        getattr(self.actions, what)("optimizer")

    def epoch_begins(self) -> None:
        """Reset the figures of the epoch."""
        self.actions.forget()
        self._paused_before = self.actions.paused_ns
        self.epoch, self._batch_end = Totals(), self._clock()

    def before_optimizer(self, optimizer: Any) -> None:
        """Take the learning rate while it is that of this step: schedulers move it before the batch ends."""
        groups = getattr(optimizer, "param_groups", None)
        if groups and "lr" in groups[0]:
            self._values["learning_rate"] = groups[0]["lr"]

    def batch_ended(self, trainer: Any, outputs: Any, batch: Any) -> None:
        """Count a batch, and end the step if its gradients were used."""
        samples = count_samples(batch)
        if samples is not None:
            self._samples = (self._samples or 0) + samples
        self._add_transforms()
        self._add_loss(outputs)
        tokens = on_host(count_tokens(batch))
        if tokens is not None:
            self._values["tokens"] = self._values.get("tokens", 0) + tokens
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self.end_step(trainer)
        now, paused = self._clock(), self.actions.paused_ns
        self.epoch.add(Load(max(0, now - self._batch_end - (paused - self._paused_before)) / 1e9, samples))
        self._batch_end, self._paused_before = now, paused

    def _add_transforms(self) -> None:
        """Count the time of the transforms: the dataset's, if measurable, and those of the trainer's hooks."""
        hooks, self._transformed = self.actions.transform_ns - self._transformed, self.actions.transform_ns
        batches = self.transforms.take()
        for nanoseconds in batches or ([] if self.transforms.measured else [0]):
            self.actions.waits["transform"].add(nanoseconds + hooks)

    def _add_loss(self, outputs: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._batches += 1
        if loss is not None and hasattr(loss, "detach"):
            loss = on_host(loss.detach())
            self._loss = loss if self._loss is None else self._loss + loss

    def end_step(self, trainer: Any) -> None:
        """End a step: one step of the optimizer, however many batches it took."""
        if self._loss is not None:
            # Lightning gives the loss as the module returned it, before it was divided for the accumulation.
            self._values["loss"] = self._loss / self._batches if self._batches > 1 else self._loss
        self._values["epoch"] = trainer.current_epoch
        with self.run.step(self._samples, self._index):
            self.run.log(self._values)
        self._index = None
        self._samples, self._loss, self._batches, self._values = None, None, 0, {}

    def epoch_ended(self, trainer: Any) -> None:
        """End a step that batches without a step of the optimizer have left open."""
        if self._batches:
            self.end_step(trainer)

    def evaluation_begins(self) -> None:
        """Open the phase; the watcher must not take the silence for a hang."""
        self._evaluated_at = self._clock()
        self.actions.enter(EVALUATION)

    def evaluation_ended(self, trainer: Any) -> None:
        """Close the phase."""
        self.actions.leave(EVALUATION)
        seconds = (self._clock() - self._evaluated_at) / 1e9
        self.run.own_event(EVALUATION, seconds=seconds, epoch=trainer.current_epoch)

    def close(self, error: BaseException | None = None) -> None:
        """Let go of the trainer and end the run, if it is ours. May be called again."""
        self.actions.detach()
        self.transforms.detach()
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()
        loggers, self._loggers = self._loggers, []
        for logger in loggers:
            del logger.log_metrics
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
    """Return the options by which all ranks begin the same run: rank 0 tells the id, unless a launcher names the job.

    Lightning starts its ranks itself and gives them no common name; it broadcasts paths of its own the same way.
    """
    new, running = nameless_id(options.get("project")), current.CURRENT.run
    if new is None:
        return {}
    return {"run_id": trainer.strategy.broadcast(running.id if running.recording else new), "resume": True}


class Recordings:
    """Which trainer is recorded by what: every callback of a trainer finds the same."""

    def __init__(self) -> None:
        """Begin with none."""
        self._of: WeakKeyDictionary[Any, Recording] = WeakKeyDictionary()

    def join(self, trainer: Any, member: object, **options: Any) -> Recording:
        """Return the recording of a trainer, begun by the first callback that asks.

        Args:
            trainer: whose fit begins.
            member: the callback.
            options: of `stepscope.init`, if there is no run yet.
        """
        recording = self._of.get(trainer)
        if recording is None:
            run, owned = self._run(trainer, options)
            recording = self._of[trainer] = Recording(run, owned=owned, is_empty=functools.partial(is_empty, trainer))
            recording.actions.attach(trainer.profiler)
            recording.transforms.attach()
        if member not in recording.members:
            recording.members.append(member)
        return recording

    def _run(self, trainer: Any, options: dict[str, Any]) -> tuple[Run, bool]:
        """Return one run for all ranks of the trainer."""
        logger = next((logger for logger in trainer.loggers if hasattr(logger, "stepscope_run")), None)
        if trainer.world_size > 1:
            options = {**options, **_agree(trainer, options)}
        return take_run(**options) if logger is None else (logger.begin(**options), False)

    def leave(self, trainer: Any, member: object, error: BaseException | None = None) -> None:
        """Remove a callback; the recording ends with the last one, or with an error."""
        recording = self._of.get(trainer)
        if recording is None:
            return
        if member in recording.members:
            recording.members.remove(member)
        if error is not None or not recording.members:
            self._of.pop(trainer, None)
            recording.close(error)


RECORDINGS = Recordings()
