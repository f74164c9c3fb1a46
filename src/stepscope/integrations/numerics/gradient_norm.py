"""The norm of gradients as they lie on this rank: by torch's foreach path, without a wait and without a collective."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HOST_BYTES_PER_SECOND = 8e9
DEVICE_BYTES_PER_SECOND = 4e11
"""What a processor and a device read at least: to expect the cost of a norm before one was taken."""
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_IS_SPARSE = attrgetter("is_sparse")
_HALF = (torch.float16, torch.bfloat16)


class Held(NamedTuple):
    """The gradients that are there."""

    tensors: list[Any]
    """What this rank holds of them."""
    positions: list[int]
    """Which parameter each belongs to."""
    whole: bool
    """Whether that is all of each, and not a shard."""

    @property
    def seconds_elsewhere(self) -> float:
        """Return what reading them costs a device, in seconds; the host does not see it."""
        if not self.tensors or self.tensors[0].device.type == self.tensors[-1].device.type == "cpu":
            return 0.0
        return float(sum(each.nbytes for each in self.tensors if each.device.type != "cpu") / DEVICE_BYTES_PER_SECOND)


def gradients_of(parameters: Iterable[Any]) -> Held:
    """Return the gradients of parameters; those that have none are left out."""
    there = [parameter.grad for parameter in parameters]
    if _PLAIN.issuperset(map(type, there)) and True not in map(_IS_SPARSE, there):
        return Held(there, list(range(len(there))), whole=True)
    tensors, positions, whole = [], [], True
    for position, gradient in enumerate(there):
        if gradient is None:
            continue
        is_plain = type(gradient) in _PLAIN and not gradient.is_sparse
        part, complete = (gradient, True) if is_plain else local_part(gradient)
        whole = whole and complete
        if part is not None:
            tensors.append(part)
            positions.append(position)
    return Held(tensors, positions, whole)


def local_part(tensor: Any) -> tuple[Any, bool]:
    """Return what this rank holds of a tensor, and whether that is all of it.

    A sparse gradient is its values; where to sum up repeated rows would wait for a device, it is None.
    """
    whole = True
    if hasattr(tensor, "placements") and hasattr(tensor, "to_local"):  # a DTensor, of FSDP2 or tensor parallelism
        mesh = tensor.device_mesh
        whole = all(place.is_replicate() or mesh.size(at) == 1 for at, place in enumerate(tensor.placements))
        with torch.no_grad():
            tensor = tensor.to_local()
    if tensor.layout is torch.sparse_coo:
        if not tensor.is_coalesced() and tensor.device.type != "cpu":
            return None, False
        return tensor.coalesce().values(), whole
    return tensor, whole


def expected_seconds(parameters: Iterable[Any]) -> float:
    """Return about how long the norm of these parameters' gradients takes the host."""
    return float(sum(each.nbytes for each in parameters if each.device.type == "cpu") / HOST_BYTES_PER_SECOND)


def norms_of(tensors: Sequence[Any]) -> tuple[Any, list[int]]:
    """Return the 2-norm of each tensor in one vector, and which tensor each element is of; there must be one tensor.

    The vector is on the device of the first tensor that is not on the host.
    """
    if _alike(tensors):
        with torch.no_grad():
            return _stacked(tensors, tensors[0].dtype), list(range(len(tensors)))
    groups: dict[tuple[Any, Any], list[int]] = {}
    for position, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(position)
    with torch.no_grad():
        parts = [_stacked([tensors[at] for at in members], dtype) for (_, dtype), members in groups.items()]
        home = next((part.device for part in parts if part.device.type != "cpu"), parts[0].device)
        wide = max((part.dtype for part in parts), key=lambda dtype: dtype.itemsize)
        joined = torch.cat([moved(part, home, wide) for part in parts])
        return joined, [at for members in groups.values() for at in members]


def _alike(tensors: Sequence[Any]) -> bool:
    return len({each.dtype for each in tensors}) == len({each.device for each in tensors}) == 1


def moved(tensor: Any, device: Any, dtype: Any) -> Any:
    """Return a tensor on a device and in a type; the host does not wait unless it is to be on the host itself."""
    if tensor.device == device:
        return tensor.to(dtype)
    return tensor.to(device, dtype, non_blocking=device.type != "cpu")


def _stacked(tensors: Sequence[Any], dtype: Any) -> Any:
    return torch.stack(_each(tensors, dtype))


def _each(tensors: Sequence[Any], dtype: Any) -> list[Any]:
    # Half precision holds no norm past 65 504, and few digits of any.
    wide = {"dtype": torch.float32} if dtype in _HALF else {}
    try:
        return list(torch._foreach_norm(tensors, 2, **wide))  # noqa: SLF001 - what torch's own clipping calls
    except (RuntimeError, NotImplementedError, TypeError):  # a device or a subclass without it, or torch before 2.4
        return [torch.linalg.vector_norm(each, **wide) for each in tensors]


def total_of(norms: Any) -> Any:
    """Return the norm of everything from the vector of the parts' norms."""
    with torch.no_grad():
        return torch.linalg.vector_norm(norms)


def norm_of(tensors: Sequence[Any]) -> Any:
    """Return the norm of all tensors together: as a number where they lie on the host, else as a tensor.

    For a hundred and more of them numbers cost half of what torch takes to join their norms.
    """
    if tensors[0].device.type != "cpu" or not _alike(tensors):
        return total_of(norms_of(tensors)[0])
    with torch.no_grad():
        return math.sqrt(sum([norm * norm for norm in map(torch.Tensor.item, _each(tensors, tensors[0].dtype))]))


def as_tensor(norm: Any) -> Any:
    """Return a norm as a tensor; one that is a number becomes one on the host."""
    return norm if isinstance(norm, torch.Tensor) else torch.tensor(norm)


def grad_norm(parameters: Iterable[Any]) -> Any:
    """Return the norm of the gradients that are there, as a tensor; None if there is none, or only shards of it."""
    found = gradients_of(parameters)
    if not found.tensors or not found.whole:
        return None
    return total_of(norms_of(found.tensors)[0])
