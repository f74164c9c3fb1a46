"""One training of a Transformers Trainer, recorded in a run: phases, steps, samples and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.throughput import Load, StepClock, Totals
from stepscope.integrations.torch.batch import count_samples, count_tokens, on_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.session.run import Run

SCALED = "num_items_in_batch"
"""Argument of the model by which the Trainer has it divide the loss by the tokens of the whole step."""
AFTER_STEP = (("should_log", "logging"), ("should_evaluate", "evaluation"), ("should_save", "checkpoint"))
"""What the Trainer does between two steps, in its order."""


class PhaseSwitch:
    """At most one open phase of a run."""

    def __init__(self, phase: Callable[[str], Any]) -> None:
        """Open phases by `phase`."""
        self._phase = phase
        self.name: str | None = None
        """The open one."""

    def to(self, name: str | None) -> None:
        """Close the open phase, and open another; None: only close."""
        if name == self.name:
            return
        before, self.name = self.name, None
        if before is not None:
            self._phase(before).__exit__(None, None, None)
        if name is not None:
            self._phase(name).__enter__()
            self.name = name


class TrainerRecording:
    """Follows the events of a Trainer. A step is a step of the optimizer and has the Trainer's own number."""

    def __init__(self, run: Run) -> None:
        """Record into `run`."""
        self.run = run
        self.phases = PhaseSwitch(run.phase)
        self._clock, self._totals = StepClock(), Totals()
        self._clock.start()
        self._hooks: list[Any] = []
        self._waiting: list[str] = []
        self.last: dict[str, Any] = {}
        """What was recorded of the last step; a loss that lies on a device is a tensor."""
        self._forget_step()

    def _forget_step(self) -> None:
        self._samples: int | None = None
        self._tokens: Any = None
        self._loss: Any = None
        self._batches, self._scaled = 0, False
        self._values: dict[str, Any] = {}

    def attach(self, model: Any) -> None:
        """Tell forward from backward by hooks on the model; without them both are the phase "compute"."""
        if model is not None:
            self._hooks.append(model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
            self._hooks.append(model.register_forward_hook(self._after_forward))

    def close(self) -> None:
        """Let go of the model. May be called again."""
        self.phases.to(None)
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()

    def step_begins(self) -> None:
        """Have the batches: what follows is their way to the device, or the computation."""
        self._waiting = []
        self._clock.resume()
        self.phases.to("copy" if self._hooks else "compute")

    def _before_forward(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if not module.training:
            return
        self.phases.to("forward")
        batch = kwargs or args
        samples = count_samples(batch)
        if samples is not None:
            self._samples = (self._samples or 0) + samples
        tokens = on_host(count_tokens(batch))
        if tokens is not None:
            self._tokens = tokens if self._tokens is None else self._tokens + tokens
        self._batches += 1
        self._scaled = kwargs.get(SCALED) is not None

    def _after_forward(self, module: Any, _args: Any, output: Any) -> None:
        if not module.training:
            return
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if loss is not None and hasattr(loss, "detach"):
            loss = on_host(loss.detach())
            self._loss = loss if self._loss is None else self._loss + loss
        self.phases.to("backward")

    def substep_ended(self) -> None:
        """Be done with a batch of an accumulation."""
        self.phases.to("copy" if self._hooks else "compute")

    def before_optimizer(self, optimizer: Any) -> None:
        """Take the learning rate while it is that of this step."""
        self.phases.to("optimizer")
        groups = getattr(optimizer, "param_groups", None)
        if groups and "lr" in groups[0]:
            self._values["learning_rate"] = groups[0]["lr"]

    def step_ended(self, index: int, epoch: float | None, control: Any) -> None:
        """End a step, and see what the Trainer will do before the next one."""
        values = self._values
        if self._loss is not None:
            values["loss"] = self._loss if self._scaled or self._batches < 2 else self._loss / self._batches
        if self._tokens is not None:
            values["tokens"] = self._tokens
        if epoch is not None:
            values["epoch"] = epoch
        self._totals.add(Load(self._clock.step() or 0.0, self._samples, self._tokens))
        with self.run.step(self._samples, index):
            self.run.log(values)
        self.last = values
        self._forget_step()
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
        """Wait for what the Trainer has announced, then for data."""
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
