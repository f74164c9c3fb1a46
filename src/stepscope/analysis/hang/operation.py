"""One operation as PyTorch's flight recorder keeps it, and how far a rank is in a group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

GLOO = "gloo"
"""The backend of CPUs, which has no device."""
SYMMETRIC = (
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "all_to_all",
    "alltoall",
    "barrier",
)
"""Collectives that no rank can leave before all have entered; a broadcast lets its root go at once."""
PAIRWISE = ("all_to_all", "alltoall")
UNEVEN = ("all_to_all", "alltoall", "gather", "scatter", "_v", "coalesced", "send", "recv", "barrier")
"""Operations whose sizes may differ between ranks, unless `EVEN` names them."""
EVEN = ("all_gather", "reduce_scatter", "allgather")


@dataclass(frozen=True)
class RecordedOp:
    """One operation that a rank enqueued."""

    group: str
    """Name of its process group, as in `RecordedGroup`."""
    name: str
    """Such as all_reduce, or "recv 0<-8" with the numbers of the group."""
    backend: str = ""
    """nccl, gloo, …"""
    description: str = ""
    group_number: int = -1
    """Number of the group in this process; the same group may have another number in another process."""
    collective: int = 0
    """Counts the collectives of the group."""
    p2p: int = 0
    """Counts the sends and receives of the group."""
    number: int = 0
    """Counts the operations of this rank."""
    is_p2p: bool = False
    is_done: bool = False
    is_started: bool = False
    """Whether the device was seen to begin it; False if that is not recorded."""
    created: float = 0.0
    """Seconds since 1970, by the clock of its node."""
    sizes: tuple[tuple[int, ...], ...] = ()
    """Of the inputs."""
    dtypes: tuple[str, ...] = ()
    frames: tuple[Mapping[str, Any], ...] = ()
    """Innermost first, each with `file`, `line` and `function`."""
    parts: tuple[str, ...] = ()
    """The names of the operations of a batch; empty for a single one."""

    @property
    def transfers(self) -> tuple[str, ...]:
        """The sends and receives that it consists of, such as "recv 0<-8"."""
        return (self.parts or (self.name,)) if self.is_p2p else ()

    @property
    def is_symmetric(self) -> bool:
        """Whether no rank can complete it before all have entered."""
        return not self.is_p2p and any(word in self.name for word in SYMMETRIC)

    @property
    def is_pairwise(self) -> bool:
        """Whether a rank may complete it before all have entered: it need not exchange anything with each of them."""
        return any(word in self.name for word in PAIRWISE)

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """What all ranks must agree on: the operation, its types, and the number of its elements if it is fixed."""
        plain = self.name.lower()
        if self.is_p2p or (any(word in plain for word in UNEVEN) and not any(word in plain for word in EVEN)):
            return (self.name,)
        return (self.parts or self.name, self.dtypes, tuple(map(_product, self.sizes)))

    def said(self) -> str:
        """Return the operation as text: all_reduce of 2048x5120 BFloat16."""
        if not self.sizes:
            return self.name
        dims = " + ".join("x".join(map(str, size)) or "1" for size in self.sizes[:3])
        return (
            f"{self.name} of {dims}{' …' if len(self.sizes) > 3 else ''} {' '.join(sorted(set(self.dtypes)))}".strip()
        )


@dataclass(frozen=True)
class GroupStatus:
    """How far one rank is in one process group: the numbers of the last operations, -1 for none."""

    enqueued: int = -1
    started: int = -1
    completed: int = -1


def _product(size: tuple[int, ...]) -> int:
    found = 1
    for dim in size:
        found *= dim
    return found
