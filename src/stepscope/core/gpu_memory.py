"""GPU memory from any accepted shape, as bytes by GPU.

The shapes: a number; a number or a mapping by GPU, under `gpu_0`, `cuda:0`, `0` or "0"; a list in order of the GPUs;
one mapping alone, such as a row of `gpu_metrics_*.jsonl`, or a list of these. MB means 2**20 bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, SupportsFloat

from stepscope.core.vocabulary import GIB, MIB

MAX_GPUS = 4096
"""The highest valid index."""
_INDEX = re.compile(r"(?:(?:gpu|cuda|device|card)[_:/ -]?)?([0-9]{1,4})", re.IGNORECASE)
_NAMED_INDEX = ("gpu_index", "index", "gpu", "gpu_id")
_SUFFIXES = {"_bytes": 1.0, "_mb": MIB, "_mib": MIB, "_gb": GIB, "_gib": GIB}
_NAMES = {
    "used": ("memory_used", "gpu_memory_used", "gpu_memory", "used"),
    "allocated": ("memory_allocated", "memory_allocation", "allocated"),
    "reserved": ("memory_reserved", "reserved"),
    "peak": ("max_memory_allocated", "memory_peak", "max_allocated", "peak_allocated", "peak"),
    "total": ("memory_total", "gpu_memory_total", "memory_capacity", "total"),
}
"""Spellings of each field, without a unit; the first one with a number counts."""


class GpuMemory(NamedTuple):
    """Memory of one GPU in bytes; None where the source does not report it."""

    used: float | None = None
    """In use on the device, by all processes."""
    allocated: float | None = None
    """Allocated by the framework's allocator."""
    reserved: float | None = None
    """Reserved by the framework's allocator."""
    peak: float | None = None
    """Peak of the allocated bytes."""
    total: float | None = None
    """Capacity of the device."""

    @property
    def in_use(self) -> float | None:
        """The widest known value of used memory: of the device, else reserved by the allocator, else allocated."""
        return next((value for value in (self.used, self.reserved, self.allocated) if value is not None), None)

    @property
    def used_ratio(self) -> float | None:
        """Used share of the capacity, 0 to 1; None if one of the two is unknown."""
        return None if self.in_use is None or not self.total else self.in_use / self.total


def by_gpu(memory: object, unit: float = MIB) -> dict[int, GpuMemory]:
    """Return the memory by index of the GPU, in order; invalid sizes are left out, and nothing raises.

    `memory` has any of the shapes above; `unit` is the bytes that a number is worth where its name gives no unit.
    """
    found = {index: figures for index, part in _parts(memory) if (figures := _figures(part, unit)) is not None}
    return dict(sorted(found.items()))


def total_in_use(memory: object, unit: float = MIB) -> float | None:
    """Return the bytes in use over all GPUs; None if no GPU reports any."""
    known = [figures.in_use for figures in by_gpu(memory, unit).values() if figures.in_use is not None]
    return sum(known) if known else None


def _parts(memory: object) -> list[tuple[int, object]]:
    """Return the reported figures of each GPU."""
    if isinstance(memory, Mapping):
        parts: list[tuple[int, object]]
        parts = [(index, part) for key, part in memory.items() if (index := index_of(key)) is not None]
        return parts or [(_own_index(memory, 0), memory)]
    if isinstance(memory, Sequence) and not isinstance(memory, (str, bytes, bytearray)):
        return [(_own_index(part, place), part) for place, part in enumerate(memory[:MAX_GPUS])]
    return [(0, memory)]


def index_of(key: object) -> int | None:
    """Return the GPU that a key names: 3 for 3, "3", "gpu_3", "cuda:3"; None if it names none."""
    if isinstance(key, bool):
        return None
    match = _INDEX.fullmatch(key if isinstance(key, str) else str(key) if hasattr(key, "__index__") else "")
    return int(match[1]) if match and int(match[1]) < MAX_GPUS else None


def _own_index(part: object, otherwise: int) -> int:
    """Return the index that a mapping gives itself, as in a row of a file."""
    given = [index_of(part[name]) for name in _NAMED_INDEX if name in part] if isinstance(part, Mapping) else []
    return next((index for index in given if index is not None), otherwise)


def _figures(part: object, unit: float) -> GpuMemory | None:
    if not isinstance(part, Mapping):
        size = _size(part, unit)
        return None if size is None else GpuMemory(used=size)
    figures = GpuMemory(**{field: _first(part, names, unit) for field, names in _NAMES.items()})
    return figures if any(value is not None for value in figures) else None


def _first(part: Mapping[object, object], names: tuple[str, ...], unit: float) -> float | None:
    for name in names:
        for suffix, factor in {**_SUFFIXES, "": unit}.items():
            size = _size(part.get(name + suffix), factor)
            if size is not None:
                return size
    return None


def _size(value: object, factor: float) -> float | None:
    """Return bytes; None for an invalid size: no number, negative, not finite."""
    if isinstance(value, (bool, str, bytes, bytearray)) or not isinstance(value, SupportsFloat):
        return None
    try:
        number = float(value) * factor
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor of several elements
        return None
    return number if math.isfinite(number) and number >= 0 else None
