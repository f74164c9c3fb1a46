"""Check gradients on the host once their norms have arrived from the device, and record the tracked layers."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from stepscope.core.parameters import layer_of
from stepscope.integrations.numerics.gradient_norm import as_tensor, moved, norms_of
from stepscope.integrations.numerics.gradient_problems import NormHistory
from stepscope.integrations.numerics.readback import Readback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.integrations.numerics.gradient_norm import LocalGradients
    from stepscope.integrations.numerics.models import ParameterNames

NORM, LOCAL = "grad_norm", "grad_norm_local"
MOST_LAYERS = 256
"""Layers that are tracked; further ones are left out."""
SETTLE_SECONDS = 0.05
"""Maximum wait at the end for values that are still on a device."""


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


class SentNorms(NamedTuple):
    """Describes a vector on its way to the host: the total norm, then scale and statistics of tracked tensors."""

    step: int
    metric: str
    """The name of the total norm."""
    family: str
    """The name of layer norms, without the layer."""
    size: int
    """Elements of all gradients."""
    tracked: TrackedLayers | None


class GradientChecks:
    """Send norms to the host without waiting, and check them there; track the layers named by `parts`."""

    def __init__(
        self, run: Any, names: ParameterNames, parts: Sequence[str], readback: Readback[SentNorms] | None = None
    ) -> None:
        self._run, self._names, self._parts = run, names, parts
        self._readback: Readback[SentNorms] = Readback() if readback is None else readback
        self._sent: list[tuple[Any, SentNorms]] = []
        self._known: list[tuple[str, float]] = []
        self._histories: dict[str, NormHistory] = {}

    def send(self, total: Any, metric: str, found: LocalGradients, parameters: Sequence[Any], scale: Any) -> None:
        """Send the total norm, recorded as `metric`, and the statistics of the tracked layers.

        `found` are the current gradients of `parameters`, which were multiplied by `scale` (None: by nothing) after
        the norm was computed. A norm that is already on the host is a number.
        """
        if not self._parts and isinstance(total, float):
            self._known.append((metric, total))
            return
        vector, tracked = as_tensor(total).detach().reshape(1), None
        if self._parts and found.tensors:
            tracked, tensors = self._tracked(found, parameters)
            if tensors:
                numbers = statistics(tensors)
                factor = torch.ones_like(vector) if scale is None else scale.detach().reshape(1)
                parts = (vector, factor, numbers)
                vector = torch.cat([moved(part, numbers.device, torch.float32) for part in parts])
        size = sum(each.numel() for each in found.tensors) if tracked else 0
        family = NORM if found.complete and not metric.startswith(LOCAL) else LOCAL
        self._sent.append((vector, SentNorms(0, metric, family, size, tracked)))

    def _tracked(self, found: LocalGradients, parameters: Sequence[Any]) -> tuple[TrackedLayers, list[Any]]:
        """Return the tracked layers, and their gradients."""
        places = dict(zip(found.positions, found.tensors, strict=True))
        layers: dict[str, list[int]] = {}
        missing: list[str] = []
        tensors: list[Any] = []
        for name, members in matching(self._names.of(list(parameters)), self._parts).items():
            held = [places[at] for at in members if at in places and places[at].numel()]
            if held:
                layers[name] = list(range(len(tensors), len(tensors) + len(held)))
                tensors += held
            else:
                missing.append(name)
        return TrackedLayers(layers, [each.numel() for each in tensors], missing), tensors

    def step_end(self, step: int | None = None) -> None:
        """Send this step's norms to the host, and check those that have arrived."""
        at = self._run.step_index if step is None else step
        for metric, norm in self._known:
            self._check(metric, at, norm)
        for vector, note in self._sent:
            self._readback.send(vector, note._replace(step=at))
        self._known, self._sent = [], []
        self._check_arrived()

    def close(self) -> None:
        """Check what is still on its way, if it arrives soon."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while len(self._readback) and time.monotonic() < deadline:
            self._check_arrived()
            time.sleep(0.001)

    def _check_arrived(self) -> None:
        for host, note in self._readback.arrived():
            values = [float(each) for each in host.tolist()]
            self._check(note.metric, note.step, values[0])
            if note.tracked is not None:
                self._check_layers(values, note, note.tracked)

    def _check_layers(self, values: list[float], note: SentNorms, tracked: TrackedLayers) -> None:
        """Record the tracked layers as they were before clipping, and check each."""
        for name in tracked.missing:
            self._check(f"{note.family}/{name}", note.step, None)
        row: dict[str, float] = {}
        typical = values[0] / max(1, note.size) ** 0.5
        for name in tracked.layers:
            layer = tracked.layer_statistics(name, values[2:]).scaled(1 / values[1] if values[1] else 1.0)
            share = layer.norm / layer.size**0.5 / typical if typical else None
            self._check(f"{note.family}/{name}", note.step, layer.norm, share)
            row |= layer.row(note.family, name)
        if row:
            self._run.log(row, step=note.step)

    def _check(self, name: str, step: int, norm: float | None, share: float | None = None) -> None:
        problem = self._histories.setdefault(name, NormHistory()).add(norm, share)
        if problem is not None:
            details = problem._asdict()
            self._run.own_event(details.pop("kind"), step=step, name=name, **details)


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
