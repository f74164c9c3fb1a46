"""Norm and statistics of the gradients of the layers that are tracked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from stepscope.core.parameters import layer_of
from stepscope.integrations.numerics.gradient_norm import gradients_of, moved, norms_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_LAYERS = 256
"""Layers that are tracked; further ones are left out."""

FIRST, FACTOR = 6, 2
"""The update at which the first look is taken, and by how much the next one is later."""
MOST_WEIGHTS = 2000


class Layer(NamedTuple):
    """The statistics of one layer's gradient."""

    norm: float
    mean: float
    std: float
    largest: float
    """Largest absolute value."""
    zero: float
    """Share of elements that are exactly zero."""
    size: int
    """Elements."""

    def scaled(self, factor: float) -> Layer:
        """Return the statistics of the gradient times a factor."""
        norm, mean, std, largest = (each * factor for each in self[:4])
        return Layer(norm, mean, std, largest, self.zero, self.size)

    def row(self, metric: str, name: str) -> dict[str, float]:
        """Return the values to record; `metric` is what norms are called."""
        return {
            f"{metric}/{name}": self.norm,
            f"grad_mean/{name}": self.mean,
            f"grad_std/{name}": self.std,
            f"grad_max/{name}": self.largest,
            f"grad_zero_ratio/{name}": self.zero,
        }


class Tracked(NamedTuple):
    """Which tensors belong to which layer."""

    layers: dict[str, list[int]]
    """Places of the tensors in what was measured, by layer."""
    sizes: list[int]
    """Elements of each tensor."""
    missing: list[str]
    """Layers that have no gradient at all."""


def matching(names: Sequence[str], parts: Sequence[str]) -> dict[str, list[int]]:
    """Return the layers whose name holds one of the parts, each with the places of its parameters."""
    found: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        if any(part in name for part in parts):
            layer = layer_of(name)
            if layer in found or len(found) < MOST_LAYERS:
                found.setdefault(layer, []).append(at)
    return found


def statistics(tensors: Sequence[Any]) -> Any:
    """Return norms, sums, lowest, highest and counts of non-zero elements of tensors in one vector, kind by kind."""
    vector, order = norms_of(tensors)
    if order != sorted(order):
        vector = torch.stack([vector[order.index(at)] for at in range(len(order))])
    with torch.no_grad():
        extremes = [torch.aminmax(each) for each in tensors]
        kinds = [
            [each.sum(dtype=torch.float32) for each in tensors],
            [each.min for each in extremes],
            [each.max for each in extremes],
            [torch.count_nonzero(each) for each in tensors],
        ]
        rest = [moved(each, vector.device, torch.float32) for kind in kinds for each in kind]
        return torch.cat([vector.float(), torch.stack(rest)])


def layer_of_values(values: Sequence[float], sizes: Sequence[int], places: Sequence[int]) -> Layer:
    """Return the statistics of the tensors at `places`, of what `statistics` gave."""
    width = len(sizes)
    columns = [[values[kind * width + at] for at in places] for kind in range(5)]
    norms, sums, lowest, highest, nonzero = columns
    size = sum(sizes[at] for at in places)
    norm = math.sqrt(sum(each * each for each in norms))
    mean = sum(sums) / size
    square = norm * norm / size - mean * mean
    std = math.sqrt(square) if square > 0 else square * 0.0  # NaN stays NaN
    largest = _largest([*lowest, *highest])
    return Layer(norm, mean, std, largest, 1.0 - sum(nonzero) / size, size)


def _largest(values: Sequence[float]) -> float:
    """Return the largest absolute value; NaN if one is."""
    return math.nan if any(math.isnan(each) for each in values) else max(map(abs, values))


class LayerLooks:
    """Decide when to look, and say what is seen."""

    def __init__(self) -> None:
        """Begin before the first update."""
        self._updates, self._next = 0, FIRST

    def is_due(self) -> bool:
        """Count an update, and say whether to look at its gradients."""
        self._updates += 1
        if self._updates < self._next:
            return False
        self._next = self._updates * FACTOR
        return True


def layer_facts(optimizer: Any, models: Iterable[Any]) -> dict[str, Any] | None:
    """Return the weakest and strongest gradient per element among an optimizer's weights on the host; None if none.

    Weights are parameters of two dimensions or more: biases and norms say little.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.ndim > 1][:MOST_WEIGHTS]
    found = gradients_of(parameters)
    if not found.tensors or not found.whole or any(each.device.type != "cpu" for each in found.tensors):
        return None
    each, order = _strengths(found.tensors)
    alive = [(value, at) for value, at in zip(each, order, strict=True) if value > 0]
    names = {id(value): name for model in models for name, value in model.named_parameters()}
    facts: dict[str, Any] = {"weights": len(each), "zero": sum(value == 0 for value in each)}
    if alive:
        (weakest, place), (strongest, _) = min(alive), max(alive)
        facts |= {"weakest": weakest, "strongest": strongest, "ratio": weakest / strongest if strongest else None}
        facts["layer"] = names.get(id(parameters[found.positions[place]]), "")
    return facts


def _strengths(tensors: list[Any]) -> tuple[list[float], list[int]]:
    """Return the root mean square of each tensor, and which tensor each is of."""
    norms, order = norms_of(tensors)
    sizes = [max(tensors[at].numel(), 1) for at in order]
    return [norm / size**0.5 for norm, size in zip(norms.tolist(), sizes, strict=True)], order
