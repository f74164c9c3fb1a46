"""Statistics of the outputs of named modules, every N steps: activations, and attention if its weights can be seen.

Hooks are registered for the measured step only; all other steps run unchanged. Values stay on the device until the
recorder reads them without waiting. If a module is called several times in a step (accumulation, recomputation), only
the first call counts.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from stepscope.core.parameters import plain_name
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
MOST_QUERIES = 64
"""Queries sampled per head, evenly spaced."""
MOST_SAMPLES = 4
"""Samples used of a batch."""
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


def attention_row(name: str, weights: Any) -> dict[str, Any]:
    """Return the mean entropy of the attention in nats, and the mean over queries of the largest weight.

    The last dimension of `weights` are the keys, which sum to 1. An entropy near 0 means attention to a single key;
    uniform attention has the logarithm of the number of keys.
    """
    values = weights.detach().float()
    entropy = torch.special.entr(values).sum(-1)
    return {f"attention_entropy/{name}": entropy.mean(), f"attention_max/{name}": values.amax(-1).mean()}


def weights_in(kind: str, output: Any) -> Any:
    """Return the attention weights in the output of a module of class `kind`; None if it has none."""
    if "softmax" in kind.lower():
        return output if isinstance(output, torch.Tensor) and output.is_floating_point() else None
    if not isinstance(output, tuple) or "att" not in kind.lower():
        return None
    first, *rest = output
    fit = [each for each in rest if isinstance(each, torch.Tensor) and each.is_floating_point() and each.dim() >= 2]
    # Weights are (… queries, keys), with as many queries as the output has positions.
    lengths = set(getattr(first, "shape", ())[:-1])
    return next((each for each in fit if each.shape[-2] in lengths and each.shape != first.shape), None)


class AttentionView(TorchFunctionMode):  # type: ignore[misc]
    """Compute the weights of the first attention call inside a module, for a sample of its queries."""

    def __init__(self, failures: Failures) -> None:
        super().__init__()
        self._failures = failures
        self._inside = self._seen = False
        self._weights: Any = None
        self.seconds = 0.0
        """Host time spent here."""

    def enter(self) -> None:
        """Start to watch calls. May be called again."""
        if not self._inside and not self._seen:
            self._inside = True
            self.__enter__()

    def leave(self) -> None:
        """Stop watching. May be called again."""
        if self._inside:
            self._inside = False
            self.__exit__(None, None, None)

    def row(self, name: str) -> dict[str, Any]:
        """Return the statistics of the weights; empty if none were seen."""
        return {} if self._weights is None else attention_row(name, self._weights)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run every call unchanged, and compute the weights from the arguments of the first attention call."""
        words = kwargs or {}
        if not self._seen and function in WEIGHTS_OF:
            start = time.perf_counter()
            with self._failures, torch.no_grad(), torch._C.DisableTorchFunction():  # noqa: SLF001 - as torch's own modes
                self._seen = True
                self._weights = WEIGHTS_OF[function](*args, **words)
                self._seen = self._weights is not None
            self.seconds += time.perf_counter() - start
        return function(*args, **words)


def weights_of(
    query: Any,
    key: Any,
    value: Any = None,  # noqa: ARG001 - the arguments of scaled_dot_product_attention
    attn_mask: Any = None,
    dropout_p: float = 0.0,  # noqa: ARG001
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    """Return the weights of scaled_dot_product_attention for a sample of queries; None for unsupported shapes."""
    if query.dim() < 3 or getattr(query, "is_nested", False):
        return None
    rows = torch.arange(0, query.shape[-2], -(-query.shape[-2] // MOST_QUERIES), device=query.device)
    some = slice(None, MOST_SAMPLES)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    asked, keys = query[some].index_select(-2, rows).float(), key[some].float()
    scores = asked @ keys.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        places = torch.arange(key.shape[-2], device=query.device)
        scores = scores.masked_fill(places > rows[:, None], float("-inf"))
    if attn_mask is not None:
        mask = attn_mask[some] if attn_mask.dim() == query.dim() and attn_mask.shape[0] > 1 else attn_mask
        mask = mask.index_select(-2, rows) if mask.shape[-2] == query.shape[-2] else mask
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return torch.softmax(scores, -1)


def _multihead_weights(*args: Any, **words: Any) -> Any:
    """Return the weights of torch's multi-head attention, which can return them; no random number is drawn."""
    if "need_weights" not in words:
        return None
    asked = {"need_weights": True, "average_attn_weights": False, "training": False}
    return torch.nn.functional.multi_head_attention_forward(*args, **{**words, **asked})[1]


WEIGHTS_OF = {
    torch.nn.functional.scaled_dot_product_attention: weights_of,
    torch.nn.functional.multi_head_attention_forward: _multihead_weights,
}
