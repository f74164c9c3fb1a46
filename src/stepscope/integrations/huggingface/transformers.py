"""A callback for the Trainer of Transformers, which records steps, phases, samples, tokens and throughput in a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from weakref import WeakValueDictionary

from transformers import TrainerCallback

from stepscope.core.vocabulary import GIB, MIB
from stepscope.integrations.target_run import take_run
from stepscope.integrations.throughput import Load, StepClock, Totals
from stepscope.integrations.torch.batch import OpenStep
from stepscope.integrations.walls import guarded
from stepscope.recorder.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.session.run import Run

IN_STEP_ROW = {"learning_rate", "epoch"}
"""Values of the Trainer that are not recorded again: they are the same as in the step's own row."""
SUMMARY = ("train_", "total_flos")
"""Values whose names start so are recorded below `trainer/`, as is the mean loss if each step has its own."""
SCALED = "num_items_in_batch"
"""The Trainer passes this argument to a model that divides its loss by the tokens of the whole step."""
AFTER_STEP = (("should_log", "logging"), ("should_evaluate", "evaluation"), ("should_save", "checkpoint"))
"""What the Trainer does between two steps, in this order."""


class _Monitor(Protocol):
    """The part of a GPUMonitor that is used here."""

    @property
    def is_monitoring(self) -> bool: ...
    def start_monitoring(self) -> None: ...
    def stop_monitoring(self) -> None: ...
    def get_current_metrics(self) -> Mapping[str, Any]: ...


class _Steps(Protocol):
    """Receives every step, such as a TrainingMonitorCallback, which writes them to a file."""

    def on_train_begin(self) -> None: ...
    def on_step_begin(self) -> None: ...
    def on_step_end(self, step: int, **values: Any) -> None: ...
    def on_train_end(self) -> None: ...


class PhaseSwitch:
    """At most one open phase of a run; `phase` returns the context of a phase."""

    def __init__(self, phase: Callable[[str], Any]) -> None:
        self._phase = phase
        self.name: str | None = None
        """The open phase."""

    def to(self, name: str | None) -> None:
        """Close the open phase, and open another unless `name` is None."""
        if name == self.name:
            return
        before, self.name = self.name, None
        if before is not None:
            self._phase(before).__exit__(None, None, None)
        if name is not None:
            self._phase(name).__enter__()
            self.name = name


class TrainerRecording:
    """Records the events of a Trainer. A step is a step of the optimizer and has the Trainer's own number."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.phases = PhaseSwitch(run.phase)
        self._clock, self._totals = StepClock(), Totals()
        self._clock.start()
        self.hooks: list[Any] = []
        """Those on the model; only with them the losses of single steps are recorded."""
        self._waiting: list[str] = []
        self.last: dict[str, Any] = {}
        """The recorded values of the last step; a loss on a device is a tensor."""
        self._step, self._is_scaled = OpenStep(), False

    def attach(self, model: Any) -> None:
        """Separate forward from backward by hooks on the model; without them both are the phase "compute"."""
        if model is not None:
            self.hooks.append(model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
            self.hooks.append(model.register_forward_hook(self._after_forward))

    def close(self) -> None:
        """Remove the hooks from the model. May be called again."""
        self.phases.to(None)
        while self.hooks:
            self.hooks.pop().remove()

    def step_begins(self) -> None:
        """Handle the arrival of the step's batches: they are copied to the device, or computed with."""
        self._waiting = []
        self._clock.resume()
        self.substep_ended()

    def _before_forward(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if not module.training:
            return
        self.phases.to("forward")
        self._step.add_batch(kwargs or args)
        self._is_scaled = kwargs.get(SCALED) is not None

    def _after_forward(self, module: Any, _args: Any, output: Any) -> None:
        if not module.training:
            return
        self._step.add_loss(output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None))
        self.phases.to("backward")

    def substep_ended(self) -> None:
        """Handle the end of one batch of an accumulation."""
        self.phases.to("copy" if self.hooks else "compute")

    def before_optimizer(self, optimizer: Any) -> None:
        """Open the phase, and read the learning rate."""
        self.phases.to("optimizer")
        self._step.before_optimizer(optimizer)

    def step_ended(self, index: int, epoch: float | None, control: Any) -> None:
        """End a step; `control` says what the Trainer does before the next one."""
        step, self._step = self._step, OpenStep()
        self.last = step.row(epoch, is_scaled=self._is_scaled)
        self._totals.add(Load(self._clock.step() or 0.0, step.samples, step.tokens))
        with self.run.step(step.samples, index):
            self.run.log(self.last)
        self.between_steps(control)

    def take_rates(self) -> dict[str, Any]:
        """Return the steps, samples and tokens per second since the last call; tensors are not read."""
        totals, self._totals = self._totals, Totals()
        return totals.rates()

    def between_steps(self, control: Any) -> None:
        """Expect what the Trainer has announced, then data."""
        self._waiting = [phase for wish, phase in AFTER_STEP if getattr(control, wish, False)]
        self._next()

    def done(self, phase: str) -> None:
        """Mark an announced phase as done; earlier ones were skipped."""
        if phase in self._waiting:
            self._waiting = self._waiting[self._waiting.index(phase) + 1 :]
            self._next()

    def _next(self) -> None:
        phase = self._waiting[0] if self._waiting else "data"
        if phase in {"evaluation", "checkpoint"}:
            self._clock.pause()
        else:
            self._clock.resume()
        self.phases.to(phase)


class GPUMonitoringCallback(TrainerCallback):  # type: ignore[misc]
    """Record the training of a Trainer, and sample its GPU. Never raises, never waits for a device."""

    active: ClassVar[WeakValueDictionary[int, GPUMonitoringCallback]] = WeakValueDictionary()
    """The recording callback of each training, by the id of its state: a Trainer with two of them records once."""

    def __init__(
        self,
        gpu_monitor: _Monitor | None = None,
        log_interval: int = 10,
        *,
        run: Run | None = None,
        steps: _Steps | None = None,
        project: str | None = None,
    ) -> None:
        """Prepare; nothing starts before the training.

        Args:
            gpu_monitor: started and stopped with the training unless it already runs; by default only the run's
                watcher samples the machine.
            log_interval: steps between two lines on the console, and between two rates.
            run: where to record; by default the current run of the process, or a new one that ends with the training.
            steps: receives every step too, such as a TrainingMonitorCallback.
            project: project of a new run.
        """
        self.gpu_monitor, self.steps = gpu_monitor, steps
        self.log_interval = max(1, int(log_interval))
        self.notices = Complaints()
        self.recording: TrainerRecording | None = None
        """The recording of this training; None outside of one."""
        self.rates: dict[str, Any] = {}
        """Steps, samples and tokens per second of the last interval; a tensor if tokens are counted on a device."""
        self._given, self._project = run, project
        self._owned, self._started_monitor = False, False
        self._logs: dict[str, float] = {}

    @guarded
    def on_train_begin(self, args: Any, state: Any, _control: Any, **more: Any) -> None:
        """Start a run if there is none, and the monitor."""
        if self.active.get(id(state), self) is not self:
            self.notices.say("twice", "the Trainer has this callback twice, by report_to too: the first one records")
            return
        self.active[id(state)] = self
        if self.gpu_monitor is not None and not self.gpu_monitor.is_monitoring:
            self.gpu_monitor.start_monitoring()
            self._started_monitor = True
        options = {"project": self._project} if self._project else {}
        run, self._owned = take_run(self._given, config=args.to_dict(), **options)
        self.recording = TrainerRecording(run)
        # A hook inside a compiled model would break its graph; in replicas it would run in other threads.
        hookable = not getattr(args, "torch_compile", False) and getattr(args, "n_gpu", 0) <= 1
        self.recording.attach(more.get("model") if hookable else None)
        self.recording.phases.to("data")
        if self.steps is not None:
            self.steps.on_train_begin()

    @guarded
    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Handle the arrival of a step's batches."""
        if self.recording is not None:
            self.recording.step_begins()
            if self.steps is not None:
                self.steps.on_step_begin()

    @guarded
    def on_substep_end(self, *_: Any, **__: Any) -> None:
        """Handle the end of one batch of an accumulation."""
        if self.recording is not None:
            self.recording.substep_ended()

    @guarded
    def on_pre_optimizer_step(self, *_: Any, **more: Any) -> None:
        """Read the learning rate."""
        if self.recording is not None:
            self.recording.before_optimizer(more.get("optimizer"))

    @guarded
    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """End a step."""
        recording = self.recording
        if recording is None:
            return
        recording.step_ended(state.global_step, state.epoch, control)
        if state.global_step % self.log_interval == 0:
            self.rates = recording.take_rates()
            recording.run.log(self.rates, step=state.global_step)
            if state.is_world_process_zero:
                sys.stdout.write(f"{self.line(state.global_step)}\n")
        if self.steps is not None:
            known, reported = recording.last, self._logs
            self.steps.on_step_end(
                state.global_step,
                epoch=state.epoch,
                loss=known.get("loss", reported.get("loss")),
                lr=known.get("learning_rate"),
                grad_norm=reported.get("grad_norm"),  # of an earlier step: the Trainer reports it after this event
                throughput=self.rates.get("samples_per_second"),
            )

    @guarded
    def on_log(self, _args: Any, state: Any, _control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Record what the Trainer reports."""
        recording = self.recording
        if recording is None or not logs:
            return
        numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
        self._logs.update({name: value for name, value in numbers.items() if not name.startswith("eval_")})
        named = {}
        for name, value in numbers.items():
            if name not in IN_STEP_ROW:
                is_mean = name == "loss" and bool(recording.hooks)
                named[f"trainer/{name}" if is_mean or name.startswith(SUMMARY) else name] = value
        recording.run.log(named, step=state.global_step)
        recording.done("logging")

    @guarded
    def on_evaluate(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """End an evaluation, whose metrics `on_log` has received."""
        if self.recording is not None:
            self.recording.run.own_event("evaluation", step=state.global_step)
            self.recording.done("evaluation")

    @guarded
    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """End a checkpoint."""
        if self.recording is not None:
            folder = f"{args.output_dir}/checkpoint-{state.global_step}"
            self.recording.run.own_event("checkpoint", step=state.global_step, path=folder)
            self.recording.done("checkpoint")

    @guarded
    def on_epoch_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Expect what the Trainer does at the end of an epoch."""
        if self.recording is not None:
            self.recording.between_steps(control)

    @guarded
    def on_train_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """End what was started."""
        recording, self.recording = self.recording, None
        self.active.pop(id(state), None)
        if self.steps is not None:
            self.steps.on_train_end()
        if self._started_monitor and self.gpu_monitor is not None:
            self._started_monitor = False
            self.gpu_monitor.stop_monitoring()
        if recording is not None:
            recording.close()
            if self._owned:
                recording.run.finish()

    def line(self, step: int) -> str:
        """Return the printed line of a step; unknown values are left out, and GB means 2**30 bytes."""
        parts = [
            f"{name}: {self._logs[name]:.4g}" for name in ("loss", "learning_rate", "grad_norm") if name in self._logs
        ]
        rate = self.rates.get("samples_per_second")
        if rate is not None:
            parts.append(f"samples/sec: {rate:.1f}")
        gpu = self.gpu_monitor.get_current_metrics() if self.gpu_monitor is not None else {}
        if gpu.get("utilization_percent") is not None:
            parts.append(f"GPU util: {gpu['utilization_percent']:.0f}%")
        if gpu.get("memory_used_mb") is not None and gpu.get("memory_total_mb") is not None:
            used, total = (gpu[name] * MIB / GIB for name in ("memory_used_mb", "memory_total_mb"))
            parts.append(f"GPU mem: {used:.1f}/{total:.1f}GB")
        if gpu.get("temperature_celsius") is not None:
            parts.append(f"GPU temp: {gpu['temperature_celsius']:.0f}°C")
        return f"GPUMonitoring: Step {step} - {', '.join(parts) or 'no figures yet'}"


def register(table: dict[str, type] | None = None) -> None:
    """Make `report_to=["stepscope"]` of TrainingArguments mean this callback, in `table` or that of Transformers."""
    if table is None:
        from transformers.integrations import integration_utils

        table = integration_utils.INTEGRATION_TO_CALLBACK
    table["stepscope"] = GPUMonitoringCallback
