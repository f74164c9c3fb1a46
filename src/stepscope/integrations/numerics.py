"""Connect the measurements of gradients, activations, memory and FLOPs to an instrument of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from stepscope.integrations.activations import Activations
from stepscope.integrations.faults import Faults
from stepscope.integrations.flops import Flops
from stepscope.integrations.gradients import Gradients
from stepscope.integrations.torch_memory import DeviceMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHARES = {"gradients": 0.3, "activations": 0.2, "memory": 0.1}
"""Parts of the overhead budget that each may spend."""


class Instrument(Protocol):
    """What is needed of `integrations.torch.Instrument`."""

    def on_gradients(self, function: Callable[[Any], None]) -> None:
        """Call a function with each optimizer that is about to step."""
        ...

    def on_update(self, function: Callable[[Any], None]) -> None:
        """Call a function with each optimizer that has stepped."""
        ...


class Numerics:
    """Everything that is measured of a training's numbers; each part is there only if it is asked for."""

    def __init__(
        self,
        run: Any,
        overhead_budget: float = 0.01,
        *,
        gradients: bool = True,
        layers: Sequence[str] = (),
        modules: Sequence[str] = (),
        memory: bool = True,
        flops: bool = False,
        peak: float | None = None,
    ) -> None:
        """Record into `run`.

        Args:
            run: the run.
            overhead_budget: share of the training's time that all measurements may take.
            gradients: measure gradients.
            layers: parts of the names of layers whose gradients are tracked.
            modules: parts of the names of modules whose activations are measured.
            memory: record memory.
            flops: count the FLOPs of one step, and record the MFU.
            peak: of the device, in FLOP/s, where the table does not know it.
        """
        self._run = run
        budgets = {name: share * overhead_budget for name, share in SHARES.items()}
        self.gradients = Gradients(run, layers=layers, budget=budgets["gradients"]) if gradients else None
        self.activations = Activations(run, modules=modules, budget=budgets["activations"]) if modules else None
        self.memory = DeviceMemory(run, budget=budgets["memory"]) if memory else None
        self.flops = Flops(run, peak) if flops else None
        self._models: Callable[[], list[Any]] = list
        self._known: set[int] = set()
        self.faults = Faults(run, "models")

    def connect(self, instrument: Instrument, models: Callable[[], list[Any]] = list) -> None:
        """Let an instrument and the run call the parts; `models` returns the models that were found so far."""
        self._models = models
        if self.gradients is not None:
            self.gradients.attach()
            instrument.on_gradients(self.gradients.before_optimizer)
            instrument.on_update(self.gradients.after_optimizer)
        self._run.follow(self)

    def attach(self, *models: Any) -> None:
        """Learn the names in these models."""
        for model in models:
            self._known.add(id(model))
            for part in (self.gradients, self.activations, self.flops):
                if part is not None:
                    part.attach(model)

    def step_end(self, samples: float | None = None) -> None:
        """End a step in every part."""
        try:
            self.attach(*(model for model in self._models() if id(model) not in self._known))
        except Exception as error:  # noqa: BLE001 - a model of any kind may raise anything; it is told
            self.faults.add(error)
        for part in (self.gradients, self.activations, self.memory):
            if part is not None:
                part.step_end()
        if self.flops is not None:
            self.flops.step_end(samples)

    def step_ended(self) -> None:
        """Be told by the run that a step has ended."""
        self.step_end()

    def run_ended(self) -> None:
        """Be told by the run that it ends."""
        self.close()

    def close(self) -> None:
        """Take everything off again."""
        self._run.unfollow(self)
        for part in (self.gradients, self.activations, self.flops):
            if part is not None:
                part.close()
