"""The loss, learning rate and padding of an uninstrumented program.

Under `stepscope run` a script has no code for us. The loss of a step is the root of its backward passes; the loss of an
evaluation is the mean of what torch's loss functions return without gradients meanwhile. If the program itself records
a value under these names, nothing is recorded here.
"""

from __future__ import annotations

import math
import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional

from stepscope.core.vocabulary import spellings
from stepscope.integrations.numerics.gradient_norm import gradients_of, norms_of
from stepscope.integrations.torch.batch import MASK, on_host
from stepscope.integrations.torch.patches import Patches
from stepscope.integrations.walls import Failures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.integrations.torch.root_modules import Roots
    from stepscope.integrations.torch.timeline import Timeline
    from stepscope.session.run import Run

LOSS, RATE, EVALUATION, PADDING = "loss", "learning_rate", "evaluation/loss", "padding_ratio"
FUNCTIONS = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "gaussian_nll_loss", "poisson_nll_loss"),
    *("hinge_embedding_loss", "margin_ranking_loss", "cosine_embedding_loss", "multi_margin_loss", "ctc_loss"),
)
MOST_OPTIMIZERS = 4
"""Maximum optimizers described."""
MOST = 4096
"""Maximum backward passes of one step whose losses are added up."""
LOOK_AT = 6
"""The backward pass whose graph is counted."""
MOST_NODES = 20_000
FIRST_LOOK = 6
"""The first update whose layers are recorded."""
MOST_WEIGHTS = 2000
SHORTEST = 8
"""Minimum length of a sequence that may have padding at its end."""


class Losses:
    """Observe losses where the hooks of an instrument run anyway, in measured steps."""

    def __init__(self, run: Run, timeline: Timeline, roots: Roots) -> None:
        self._run, self._timeline = run, timeline
        self._pending: list[Any] = []
        self._passes = self._updates = 0
        self._roots = roots
        self._scaled: tuple[weakref.ref[Any], Any] | None = None
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._own: set[tuple[str, ...]] = set()
        self._layouts = 0
        self._taken: set[str] = set()
        self._patches = Patches()
        self._evaluated: tuple[Any, int] | None = None
        self._at: int | None = None
        self._listening = False
        self.failures = Failures(run, "losses")

    def heard(self, root: Any) -> None:
        """Handle a backward pass that starts from `root`."""
        if self.failures.over:
            return
        try:  # not a context manager, which costs 0.2 µs: this runs in every step
            if self._listening:
                self.training()
            if type(root) in (list, tuple):
                if len(root) != 1:
                    return
                root = root[0]
            if root.numel() == 1 and len(self._pending) < MOST:
                if self._scaled is not None and self._scaled[0]() is root:
                    root = self._scaled[1]
                self._pending.append(root.detach())
                self._passes += 1
                if self._passes == LOOK_AT:
                    self._look(root)
        except Exception as error:  # noqa: BLE001 - any tensor subclass may raise anything; it is reported
            self.failures.add(error)

    def _look(self, root: Any) -> None:
        """Record once how large the graph of a loss is, and how torch is configured."""
        nodes, complete = count_nodes(root.grad_fn)
        self._run.own_event("graph", nodes=nodes, complete=complete)
        self._run.own_event(
            "torch_setup", threads=torch.get_num_threads(), dtype=str(root.dtype), device=root.device.type
        )

    def updating(self, optimizer: Any) -> None:
        """Handle an optimizer that is about to step: record the loss that it follows, and its learning rate."""
        if not self._pending or self.failures.over:
            return
        try:  # not a context manager, which costs 0.2 µs: this runs in every step
            parts, self._pending = self._pending, []
            if optimizer not in self._optimizers and len(self._optimizers) < MOST_OPTIMIZERS:
                self._run.own_event("optimizer_setup", **optimizer_setup(optimizer))
            number = self._optimizers.setdefault(optimizer, len(self._optimizers))
            end = f"/optimizer_{number}" if number else ""
            numbers = [on_host(part) for part in parts]
            row = {f"{LOSS}{end}": numbers[0] if len(numbers) == 1 else sum(numbers)}
            groups = optimizer.param_groups
            if groups and "lr" in groups[0]:
                row[f"{RATE}{end}"] = on_host(groups[0]["lr"])
            self._log(row)
            self._updates += 1
            if is_look_due(self._updates):
                found = layer_extremes(optimizer, self._roots.modules)
                if found is not None:
                    self._run.own_event("gradient_layers", **found)
        except Exception as error:  # noqa: BLE001 - any tensor subclass may raise anything; it is reported
            self.failures.add(error)

    def scaled(self, original: Any) -> Any:
        """Return a wrapper of `GradScaler.scale` that remembers the scaled value."""

        def scale(scaler: Any, outputs: Any) -> Any:
            found = original(scaler, outputs)
            if isinstance(found, torch.Tensor) and isinstance(outputs, torch.Tensor):
                self._scaled = (weakref.ref(found), outputs.detach())
            return found

        return scale

    def evaluating(self) -> None:
        """Handle what looks like the start of an evaluation: observe the loss functions until training continues."""
        if self._listening or self._timeline.traced or self.failures.over:
            return
        if get_ident() != self._timeline.thread or not self._timeline.active:
            return
        self._listening = True
        self._at = None if self._timeline.steps.yielded else max(self._timeline.steps.last, 0)
        for name in FUNCTIONS:
            self._patches.wrap(torch.nn.functional, name, self._listen)

    def training(self) -> None:
        """Handle the return to training, or the end of the run: record the evaluation's loss."""
        if not self._listening:
            return
        self._listening = False
        self._patches.restore()
        if self._evaluated is not None:
            (total, count), self._evaluated = self._evaluated, None
            self._log({EVALUATION: on_host(total / count)}, self._at)

    def inspect(self, batch: Any) -> None:
        """Record the padding of a batch, if its sequences could be padded."""
        if self.failures.over:
            return
        with self.failures:
            found = padding_of(batch)
            if found is not None:
                self._log({PADDING: found})

    def _listen(self, original: Any) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            value = original(*args, **kwargs)
            if not torch.is_grad_enabled() and get_ident() == self._timeline.thread:
                self._add(value, args, kwargs)
            return value

        return function

    def _add(self, value: Any, args: Any, kwargs: Any) -> None:
        with self.failures:
            if not isinstance(value, torch.Tensor) or value.numel() != 1:
                return
            share = value.detach()
            if kwargs.get("reduction") == "sum":
                share = share / max(len(args[0] if args else kwargs["input"]), 1)
            before, count = self._evaluated or (0.0, 0)
            self._evaluated = (before + on_host(share), count + 1)

    def _log(self, row: dict[str, Any], step: int | None = None) -> None:
        """Record a row without the values that the program records itself."""
        layouts: Mapping[tuple[str, ...], Any] = self._run._intake.layouts  # noqa: SLF001 - the names in use
        if len(layouts) != self._layouts:
            self._layouts = len(layouts)
            names = {name for key in list(layouts) if key not in self._own for name in key}
            self._taken = {own for own in (LOSS, RATE, PADDING) if names & {name for name, _ in spellings(own)}}
        if self._taken:
            row = {name: value for name, value in row.items() if name.partition("/")[0] not in self._taken}
        if row:
            self._own.add(tuple(row))
            type(self._run).log(self._run, row, step=step)  # not as a row of the script, which may be caught as well


def count_nodes(root: Any, most: int = MOST_NODES) -> tuple[int, bool]:
    """Return how many operations the graph below a node has, and whether that is all of them."""
    seen: set[Any] = set()
    todo = [root]
    while todo and len(seen) < most:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [child for child, _ in node.next_functions]
    return len(seen), not todo


def optimizer_setup(optimizer: Any) -> dict[str, Any]:
    """Return how many tensors an optimizer updates, and whether one after another: several operations for each.

    Torch batches them by itself if all are on a GPU, elsewhere only on request.
    """
    groups = optimizer.param_groups
    tensors = [tensor for group in groups for tensor in group["params"]]
    asked = [group.get("fused") or group.get("foreach") for group in groups]
    together = all(asked) or (all(one is None for one in asked) and all(tensor.is_cuda for tensor in tensors))
    return {"optimizer": type(optimizer).__name__, "tensors": len(tensors), "one_by_one": not together}


def is_look_due(update: int) -> bool:
    """Return whether to record the layers at this update, counted from 1: at the 6th, 12th, 24th and so on."""
    times, rest = divmod(update, FIRST_LOOK)
    return rest == 0 and times.bit_count() == 1


def layer_extremes(optimizer: Any, models: Iterable[Any]) -> dict[str, Any] | None:
    """Return the weakest and strongest gradient per element among an optimizer's weights on the host; None if none.

    Weights are parameters of two dimensions or more: biases and norms say little.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.ndim > 1][:MOST_WEIGHTS]
    found = gradients_of(parameters)
    if not found.tensors or not found.complete or any(each.device.type != "cpu" for each in found.tensors):
        return None
    norms, order = norms_of(found.tensors)
    sizes = [max(found.tensors[at].numel(), 1) for at in order]
    strengths = [norm / size**0.5 for norm, size in zip(norms.tolist(), sizes, strict=True)]  # root mean squares
    alive = [(value, at) for value, at in zip(strengths, order, strict=True) if value > 0]
    names = {id(value): name for model in models for name, value in model.named_parameters()}
    facts: dict[str, Any] = {"weights": len(strengths), "zero": sum(value == 0 for value in strengths)}
    if alive:
        (weakest, place), (strongest, _) = min(alive), max(alive)
        facts |= {"weakest": weakest, "strongest": strongest, "ratio": weakest / strongest}
        facts["layer"] = names.get(id(parameters[found.positions[place]]), "")
    return facts


def padding_of(batch: Any) -> float | None:
    """Return the padded share of a batch; None if it has no sequences on the host.

    Detected by its attention mask, else by integer sequences that end in runs of one value of different lengths.
    """
    if isinstance(batch, dict):
        mask = batch.get(MASK)
        if isinstance(mask, torch.Tensor) and mask.ndim == 2 and mask.device.type == "cpu" and mask.numel():
            return 1.0 - float(mask.count_nonzero()) / float(mask.numel())
        batch = list(batch.values())
    for part in batch if isinstance(batch, (list, tuple)) else (batch,):
        if isinstance(part, torch.Tensor) and part.device.type == "cpu" and part.ndim == 2:
            found: float | None = _padded_ends(part)
            if found is not None:
                return found
    return None


def _padded_ends(tokens: Any) -> float | None:
    rows, places = tokens.shape
    if tokens.is_floating_point() or tokens.dtype == torch.bool or places < SHORTEST or rows < 2:
        return None
    last = tokens[:, -1]
    pad = last.mode().values
    ends = (tokens == pad).flip(1).int().cumprod(1).sum(1)  # how many of the last places of each row hold it
    lengths = places - ends
    # Flags and one-hot rows are no tokens.
    is_plausible = int(tokens.max()) > 2 and int(ends.min()) <= 1 and len(lengths.unique()) > 1
    if not is_plausible or bool(((tokens == pad).sum(1) > ends + places // 4).any()):
        return None
    share = float(ends.sum()) / tokens.numel()
    return share if math.isfinite(share) else None
