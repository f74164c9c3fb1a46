"""Connect the measurements of gradients, activations, memory and FLOPs to torch's instrument.

They run in examined steps, each within its share of the overhead budget. In all other steps they only record the norm
that the program's own clipping computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.integrations.numerics.activations import Activations
from stepscope.integrations.numerics.flops import Flops
from stepscope.integrations.numerics.gradients import Gradients
from stepscope.integrations.numerics.memory import DeviceMemory
from stepscope.integrations.numerics.models import Models
from stepscope.integrations.numerics.oom import OutOfMemory, is_out_of_memory
from stepscope.integrations.walls import Failures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.integrations.torch.root_modules import Roots
    from stepscope.integrations.torch.timeline import Timeline

SHARES = {"gradients": 0.05, "activations": 0.1, "memory": 0.03}
"""Share of the overhead budget that each may spend."""
HISTOGRAMS_EVERY = 1000
"""Steps between two histograms of all parameters and gradients, if requested."""


class Numerics:
    """All numeric measurements of a training; each part exists only if it is requested."""

    def __init__(
        self,
        run: Any,
        overhead_budget: float = 0.01,
        *,
        gradients: bool = True,
        parameters: bool = False,
        layers: Sequence[str] = (),
        modules: Sequence[str] = (),
        memory: bool = True,
        flops: bool = False,
        peak: float | None = None,
    ) -> None:
        """Record into `run`.

        Args:
            run: the run.
            overhead_budget: share of the training's time for all measurements.
            gradients: measure gradients.
            parameters: record histograms of parameters and gradients periodically.
            layers: track the gradients of layers whose names contain one of these.
            modules: measure the activations of modules whose names contain one of these.
            memory: record memory.
            flops: count the FLOPs of one step, and record the MFU.
            peak: peak of the device in FLOP/s, if it is not in the table.
        """
        budgets = {name: share * overhead_budget for name, share in SHARES.items()}
        wanted = gradients or parameters or bool(layers)
        self.gradients = Gradients(run, layers=layers, budget=budgets["gradients"]) if wanted else None
        self.activations = Activations(run, modules=modules, budget=budgets["activations"]) if modules else None
        self.memory = DeviceMemory(run, budget=budgets["memory"]) if memory else None
        self.flops = Flops(run, peak) if flops else None
        self._out_of_memory = OutOfMemory(run)
        self._timeline: Timeline | None = None
        self._roots: Roots | None = None
        self._models = Models()
        self._parameters, self._until_histograms = parameters, 0
        self.failures = Failures(run, "models")

    def connect(self, timeline: Timeline, roots: Roots) -> None:
        """Register the parts with an instrument's timeline; it calls `before_optimizer` itself."""
        self._timeline, self._roots = timeline, roots
        if self.gradients is not None:
            self.gradients.attach()
        if self.memory is not None:
            timeline.phase_ended = self.memory.phase_end
        timeline.looks.append(self.step_begin)
        timeline.looked.append(self.step_end)

    def attach(self, *models: Any) -> None:
        """Learn the names in these models."""
        for model in models:
            self._models.add(model)
            for part in (self._out_of_memory, self.gradients, self.activations, self.flops):
                if part is not None:
                    part.attach(model)

    def learn(self, _optimizer: Any = None) -> None:
        """Attach the models that were found since the last call."""
        assert self._roots is not None  # noqa: S101 - connected
        with self.failures:
            self.attach(*(model for model in self._roots.modules if model not in self._models))

    def step_begin(self, skipped: int) -> None:
        """Start an examined step; `skipped` is the number of steps since the last one."""
        self._until_histograms -= skipped + 1
        for counting in (self.gradients, self.activations, self.memory):
            if counting is not None and skipped:
                counting.skip(skipped)
        if self.gradients is not None:
            self.gradients.looking = True
            if self._parameters and self._until_histograms <= 0:
                self._until_histograms = HISTOGRAMS_EVERY
                self.gradients.request_histograms()
        for part in (self.activations, self.flops):
            if part is not None:
                part.step_begin()

    def step_end(self, step: int | None) -> None:
        """End an examined step; `step` is its index, None for the current one."""
        if self._timeline is None:
            return
        self.learn()
        for part in (self.gradients, self.activations, self.memory):
            if part is not None:
                part.step_end(step)
        if self.flops is not None:
            self.flops.step_end(self._timeline.keeper.closed, step)
        if self.gradients is not None:
            self.gradients.looking = False

    def silence(self, quiet: bool) -> None:  # noqa: FBT001 - called by the instrument
        """Ignore the program's clipping while steps are not measured."""
        if self.gradients is not None:
            self.gradients.listening = not quiet

    def failed(self, error: BaseException) -> None:
        """Record the error that ends the run, if memory ran out."""
        if is_out_of_memory(error):
            self._out_of_memory.record(error)

    def close(self) -> None:
        """Remove everything."""
        for part in (self.gradients, self.activations, self.flops):
            if part is not None:
                part.close()
