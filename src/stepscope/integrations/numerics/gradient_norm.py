"""Norms of gradients and updates on this rank, by torch's foreach functions, without synchronization or collectives."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HOST_BYTES_PER_SECOND = 8e9
DEVICE_BYTES_PER_SECOND = 4e11
"""Lower limits of read bandwidth, to estimate the cost of the first norm."""
MOST_TENSORS = 32
MOST_ELEMENTS = 1 << 18
"""Sample of the weights. In a larger model it consists of evenly spaced tensors, and evenly spaced rows of each."""
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_IS_SPARSE = attrgetter("is_sparse")
_HALF = (torch.float16, torch.bfloat16)


class LocalGradients(NamedTuple):
    """The gradients of some parameters, as far as they exist on this rank."""

    tensors: list[Any]
    positions: list[int]
    """The index of each tensor's parameter."""
    complete: bool
    """Whether the tensors are complete gradients rather than shards."""

    @property
    def device_seconds(self) -> float:
        """Return the estimated time to read them on a device, which the host's clock does not show."""
        if not self.tensors or self.tensors[0].device.type == self.tensors[-1].device.type == "cpu":
            return 0.0
        return float(sum(each.nbytes for each in self.tensors if each.device.type != "cpu") / DEVICE_BYTES_PER_SECOND)


def gradients_of(parameters: Iterable[Any]) -> LocalGradients:
    """Return the gradients of parameters; parameters without one are left out."""
    there = [parameter.grad for parameter in parameters]
    if _PLAIN.issuperset(map(type, there)) and True not in map(_IS_SPARSE, there):
        return LocalGradients(there, list(range(len(there))), complete=True)
    tensors, positions, complete = [], [], True
    for position, gradient in enumerate(there):
        if gradient is None:
            continue
        is_plain = type(gradient) in _PLAIN and not gradient.is_sparse
        part, is_all = (gradient, True) if is_plain else local_part(gradient)
        complete = complete and is_all
        if part is not None:
            tensors.append(part)
            positions.append(position)
    return LocalGradients(tensors, positions, complete)


def local_part(tensor: Any) -> tuple[Any, bool]:
    """Return this rank's part of a tensor, and whether that is the complete tensor.

    For a sparse gradient the part is its values; None if summing repeated rows would synchronize with the device.
    """
    complete = True
    if hasattr(tensor, "placements") and hasattr(tensor, "to_local"):  # a DTensor, of FSDP2 or tensor parallelism
        mesh = tensor.device_mesh
        complete = all(place.is_replicate() or mesh.size(at) == 1 for at, place in enumerate(tensor.placements))
        with torch.no_grad():
            tensor = tensor.to_local()
    if tensor.layout is torch.sparse_coo:
        if not tensor.is_coalesced() and tensor.device.type != "cpu":
            return None, False
        return tensor.coalesce().values(), complete
    return tensor, complete


def expected_seconds(parameters: Iterable[Any]) -> float:
    """Return the estimated time that the host needs for the norm of these parameters' gradients."""
    return float(sum(each.nbytes for each in parameters if each.device.type == "cpu") / HOST_BYTES_PER_SECOND)


def norms_of(tensors: Sequence[Any]) -> tuple[Any, list[int]]:
    """Return one vector with the 2-norm of each tensor, and the tensors' indices in its order; `tensors` is not empty.

    The vector is on the device of the first tensor that is not on the host.
    """
    if _alike(tensors):
        with torch.no_grad():
            return torch.stack(_each(tensors, tensors[0].dtype)), list(range(len(tensors)))
    groups: dict[tuple[Any, Any], list[int]] = {}
    for position, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(position)
    with torch.no_grad():
        parts = [torch.stack(_each([tensors[at] for at in places], dtype)) for (_, dtype), places in groups.items()]
        home = next((part.device for part in parts if part.device.type != "cpu"), parts[0].device)
        wide = max((part.dtype for part in parts), key=lambda dtype: dtype.itemsize)
        joined = torch.cat([moved(part, home, wide) for part in parts])
        return joined, [at for members in groups.values() for at in members]


def _alike(tensors: Sequence[Any]) -> bool:
    return len({each.dtype for each in tensors}) == len({each.device for each in tensors}) == 1


def moved(tensor: Any, device: Any, dtype: Any) -> Any:
    """Return a tensor on another device and in another type, without waiting unless the target is the host."""
    if tensor.device == device:
        return tensor.to(dtype)
    return tensor.to(device, dtype, non_blocking=device.type != "cpu")


def _each(tensors: Sequence[Any], dtype: Any) -> list[Any]:
    # Half precision cannot represent a norm above 65 504, and has few digits.
    wide = {"dtype": torch.float32} if dtype in _HALF else {}
    try:
        return list(torch._foreach_norm(tensors, 2, **wide))  # noqa: SLF001 - torch's own clipping calls it
    except (RuntimeError, NotImplementedError, TypeError):  # a device or a subclass without it, or torch before 2.4
        return [torch.linalg.vector_norm(each, **wide) for each in tensors]


def total_of(norms: Any) -> Any:
    """Return the total norm from the vector of the parts' norms."""
    with torch.no_grad():
        return torch.linalg.vector_norm(norms)


def norm_of(tensors: Sequence[Any]) -> Any:
    """Return the total norm of all tensors: a number if all are on the host, else a tensor.

    For a hundred tensors or more, adding up numbers takes half as long as combining their norms with torch.
    """
    if tensors[0].device.type != "cpu" or not _alike(tensors):
        return total_of(norms_of(tensors)[0])
    with torch.no_grad():
        return math.sqrt(sum([norm * norm for norm in map(torch.Tensor.item, _each(tensors, tensors[0].dtype))]))


def as_tensor(norm: Any) -> Any:
    """Return a norm as a tensor, on the host if it is a number."""
    return norm if isinstance(norm, torch.Tensor) else torch.tensor(norm)


def sampled(tensor: Any, most: int) -> Any:
    """Return a view of evenly spaced rows with about `most` elements; a tensor with fewer is returned unchanged."""
    stride = math.ceil(tensor.numel() / most)
    return tensor[::stride] if stride > 1 and tensor.dim() else tensor


class UpdateRatio:
    """Keep a sample of the weights before a step, and compare it after.

    The ratio is the norm of the change divided by the norm of the weights before it, both over the sample.
    """

    def __init__(self) -> None:
        self._views: list[Any] = []
        self._before: list[Any] = []

    @property
    def has_sample(self) -> bool:
        """Return whether there is a sample to compare with."""
        return bool(self._before)

    def before(self, parameters: list[Any]) -> None:
        """Copy the sample: this rank's part of floating-point parameters."""
        trained = [each for each in parameters if each.requires_grad and each.is_floating_point()]
        chosen = trained[:: max(1, math.ceil(len(trained) / MOST_TENSORS))]
        parts = [local_part(each.detach())[0] for each in chosen]
        self._views = [
            sampled(part, MOST_ELEMENTS // len(chosen)) for part in parts if part is not None and part.numel()
        ]
        with torch.no_grad():
            self._before = [each.clone() for each in self._views]

    def after(self) -> Any:
        """Return the ratio as a tensor, and release the sample; there must be one."""
        views, before = self._views, self._before
        self._views, self._before = [], []
        with torch.no_grad():
            weights = total_of(norms_of(before)[0])
            changes = [now - then for now, then in zip(views, before, strict=True)]
            return total_of(norms_of(changes)[0]) / weights
