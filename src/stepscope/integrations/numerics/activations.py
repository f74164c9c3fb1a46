"""Statistics of the outputs of named modules, every N steps: activations, and attention if its weights can be seen.

Hooks are registered for the measured step only; all other steps run unchanged. Values stay on the device until the
recorder reads them without waiting. If a module is called several times in a step (accumulation, recomputation), only
the first call counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from stepscope.core.parameters import plain_name
from stepscope.integrations.numerics.attention import AttentionView, attention_row, weights_in
from stepscope.integrations.numerics.cadence import Cadence
from stepscope.integrations.numerics.gradient_norm import sampled
from stepscope.integrations.numerics.models import Models
from stepscope.integrations.torch.timeline import compiling
from stepscope.integrations.walls import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_ELEMENTS = 1 << 20
"""Elements sampled from one output, evenly spaced."""
MOST_MODULES = 64
BOUNDS: dict[str, tuple[float, float]] = {
    "Sigmoid": (0.01, 0.99),
    "Hardsigmoid": (0.01, 0.99),
    "Tanh": (-0.99, 0.99),
    "Hardtanh": (-0.99, 0.99),
    "Softsign": (-0.99, 0.99),
    "ReLU6": (float("-inf"), 5.94),
}
"""Modules with a bounded output: beyond these values it is saturated."""


class Activations:
    """Measure modules whose names contain one of `modules`; called around steps that may be measured."""

    def __init__(
        self,
        run: Any,
        every: int = 100,
        modules: Sequence[str] = (),
        clock: Callable[[], float] = time.perf_counter,
        budget: float | None = 0.003,
    ) -> None:
        """Record into `run` every `every` steps, within `budget` (a share of the time; None: no limit)."""
        self._run, self._parts = run, tuple(modules)
        self._cadence = Cadence(every, budget, clock)
        self._models = Models()
        self._handles: list[Any] = []
        self._row: dict[str, Any] = {}
        self._calls: set[str] = set()
        self._views: dict[str, AttentionView] = {}
        self._spent = 0.0
        self._reported: set[str] = set()
        self.failures = Failures(run, "activations")

    @property
    def measuring(self) -> bool:
        """Return whether the current step is measured."""
        return bool(self._handles)

    def attach(self, model: Any) -> None:
        """Measure this model too."""
        self._models.add(model)

    def skip(self, count: int) -> None:
        """Count steps that were skipped."""
        self._cadence.step(count)

    def step_end(self, step: int | None = None) -> None:
        """Record the step if it was measured; `step` is its index, None for the current one."""
        if self.failures.over or not self._parts:
            return
        with self.failures.undoing(self.close):
            measured = self.measuring
            self.close()
            if measured:
                self._record(step)
            self._cadence.step()

    def step_begin(self) -> None:
        """Register hooks if the step that starts is to be measured."""
        if self.failures.over or not self._parts or self.measuring:
            return
        with self.failures.undoing(self.close):
            if self._run.recording and self._cadence.due():
                self._register()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for view in self._views.values():
            view.leave()

    def _register(self) -> None:
        """Register hooks on the modules, except those of a compiled model, which would be compiled again."""
        for model in self._models:
            if any(is_compiled(part) for part in model.modules()):
                self._report("compiled", "the model is compiled, and hooks would recompile it", "run it uncompiled")
                continue
            named = [(plain_name(name), part) for name, part in model.named_modules() if name]
            chosen = [(name, part) for name, part in named if any(word in name for word in self._parts)]
            if not chosen:
                self._report("modules", f"no module is called {', '.join(self._parts)}", "see model.named_modules()")
            for name, part in chosen[:MOST_MODULES]:
                self._hook(name, part)

    def _hook(self, name: str, part: Any) -> None:
        if "attention" in type(part).__name__.lower() or "attn" in type(part).__name__.lower():
            view = self._views[name] = AttentionView(self.failures)
            self._handles.append(part.register_forward_pre_hook(lambda *_: None if compiling() else view.enter()))
            self._handles.append(part.register_forward_hook(lambda *_: view.leave(), always_call=True))

        def hook(module: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001 - torch's signature
            self._measure(name, module, output)

        self._handles.append(part.register_forward_hook(hook))

    def _measure(self, name: str, module: Any, output: Any) -> None:
        """Compute the statistics of one output."""
        if compiling() or name in self._calls:
            return
        start = self._cadence.start()
        with self.failures:
            self._calls.add(name)
            with torch.no_grad():
                tensor = first_tensor(output)
                if tensor is not None:
                    self._row |= activation_row(name, type(module).__name__, tensor.detach())
                weights = weights_in(type(module).__name__, output)
                if weights is not None:
                    self._row |= attention_row(name, weights)
        self._spent += self._cadence.start() - start

    def _record(self, step: int | None) -> None:
        for name, view in self._views.items():
            self._row = {**view.row(name), **self._row}
            self._spent += view.seconds
            if name in self._calls and f"attention_entropy/{name}" not in self._row:
                cause = f"{name} neither gives its weights nor calls scaled_dot_product_attention"
                self._report(f"attention {name}", cause, 'ask for the weights: need_weights=True, or "eager" attention')
        if self._row:
            self._run.log(self._row, step=step)
        self._cadence.stop(self._cadence.start(), self._spent)
        self._row, self._spent = {}, 0.0
        self._calls.clear()
        self._views.clear()

    def _report(self, key: str, cause: str, remedy: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            self._run.own_event("activations_unavailable", cause=cause, remedy=remedy)


def is_compiled(module: Any) -> bool:
    """Return whether a module was compiled by torch.compile or module.compile()."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def first_tensor(output: Any) -> Any:
    """Return the first floating-point tensor of a module's output; None if it has none."""
    if isinstance(output, torch.Tensor):
        return output if output.is_floating_point() and output.numel() else None
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else ()
    return next((found for found in map(first_tensor, parts) if found is not None), None)


def activation_row(name: str, kind: str, tensor: Any) -> dict[str, Any]:
    """Return mean, standard deviation (population), share of zeros and, for bounded functions, of saturated values.

    `kind` is the class of the module, `tensor` its output; of a DTensor the local part is used.
    """
    values = sampled(tensor.to_local() if hasattr(tensor, "to_local") else tensor, MOST_ELEMENTS).float()
    variance, mean = torch.var_mean(values, correction=0)
    row = {
        f"activation_mean/{name}": mean,
        f"activation_std/{name}": variance.sqrt(),
        f"activation_zero_ratio/{name}": (values == 0).float().mean(),
    }
    if kind in BOUNDS:
        low, high = BOUNDS[kind]
        row[f"activation_saturated_ratio/{name}"] = ((values <= low) | (values >= high)).float().mean()
    return row
