"""One training of a Transformers Trainer, recorded in a run: phases, steps, samples and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.open_step import OpenStep
from stepscope.integrations.throughput import Load, StepClock, Totals

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.session.run import Run

SCALED = "num_items_in_batch"
"""The Trainer passes this argument to a model that divides its loss by the tokens of the whole step."""
AFTER_STEP = (("should_log", "logging"), ("should_evaluate", "evaluation"), ("should_save", "checkpoint"))
"""What the Trainer does between two steps, in this order."""


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
        self._hooks: list[Any] = []
        self._waiting: list[str] = []
        self.last: dict[str, Any] = {}
        """The recorded values of the last step; a loss on a device is a tensor."""
        self._step, self._is_scaled = OpenStep(), False

    def attach(self, model: Any) -> None:
        """Separate forward from backward by hooks on the model; without them both are the phase "compute"."""
        if model is not None:
            self._hooks.append(model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
            self._hooks.append(model.register_forward_hook(self._after_forward))

    def close(self) -> None:
        """Remove the hooks from the model. May be called again."""
        self.phases.to(None)
        while self._hooks:
            self._hooks.pop().remove()

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
        self.phases.to("copy" if self._hooks else "compute")

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

    @property
    def loss_is_known(self) -> bool:
        """Whether losses of single steps are recorded."""
        return bool(self._hooks)

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
