"""Norm and statistics of the gradients of single layers."""

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
FIRST_LOOK = 6
"""The first update whose layers are recorded."""
MOST_WEIGHTS = 2000


class LayerStatistics(NamedTuple):
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

    def scaled(self, factor: float) -> LayerStatistics:
        """Return the statistics of the gradient times a factor."""
        norm, mean, std, largest = (each * factor for each in self[:4])
        return LayerStatistics(norm, mean, std, largest, self.zero, self.size)

    def row(self, metric: str, name: str) -> dict[str, float]:
        """Return the values to record; `metric` is the name of norms."""
        metrics = (metric, "grad_mean", "grad_std", "grad_max", "grad_zero_ratio")
        return {f"{each}/{name}": value for each, value in zip(metrics, self[:5], strict=True)}


class TrackedLayers(NamedTuple):
    """Which of the measured tensors belong to which layer."""

    layers: dict[str, list[int]]
    """Indices of each layer's tensors."""
    sizes: list[int]
    """Elements of each tensor."""
    missing: list[str]
    """Layers without any gradient."""

    def layer_statistics(self, layer: str, values: Sequence[float]) -> LayerStatistics:
        """Return the statistics of a layer from the `values` that the function `statistics` computed."""
        places, width = self.layers[layer], len(self.sizes)
        columns = [[values[kind * width + at] for at in places] for kind in range(5)]
        norms, sums, lowest, highest, nonzero = columns
        size = sum(self.sizes[at] for at in places)
        norm = math.sqrt(sum(each * each for each in norms))
        mean = sum(sums) / size
        square = norm * norm / size - mean * mean
        std = math.sqrt(square) if square > 0 else square * 0.0  # NaN stays NaN
        extremes = [*lowest, *highest]
        largest = math.nan if any(map(math.isnan, extremes)) else max(map(abs, extremes))
        return LayerStatistics(norm, mean, std, largest, 1.0 - sum(nonzero) / size, size)


def matching(names: Sequence[str], parts: Sequence[str]) -> dict[str, list[int]]:
    """Return the layers whose name contains one of the parts, each with the indices of its parameters."""
    found: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        if any(part in name for part in parts):
            layer = layer_of(name)
            if layer in found or len(found) < MOST_LAYERS:
                found.setdefault(layer, []).append(at)
    return found


def statistics(tensors: Sequence[Any]) -> Any:
    """Return one vector: the norms of all tensors, then their sums, minima, maxima and counts of non-zero elements."""
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
