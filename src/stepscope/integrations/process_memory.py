"""Memory of this process, of torch's allocator and of datasets. Only the host is read: no device is waited for."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

STATUS, STATM = "/proc/self/status", "/proc/self/statm"
DEPTH = 4
"""Maximum depth of attributes, lists and dictionaries below a dataset."""
MOST_OBJECTS = 10_000
"""Maximum objects of a dataset that are examined: beyond it the answer is "unknown" rather than slow."""


def peak_resident(status: str | os.PathLike[str] = STATUS) -> int | None:
    """Return the peak resident memory of this process in bytes; None if it is unavailable."""
    try:
        with open(status, encoding="ascii", errors="replace") as file:
            line = next(line for line in file if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError, StopIteration):
        return peak_by_usage() or None


def peak_by_usage() -> int:
    """Return the same from a system call, which is faster and may count a parent before exec; 0 if unavailable."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident(statm: str | os.PathLike[str] = STATM) -> int | None:
    """Return the resident memory of this process in bytes; None if it is unavailable, as outside Linux."""
    try:
        with open(statm, encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def used_cuda(modules: Mapping[str, Any] = sys.modules) -> Any:
    """Return `torch.cuda` if this process already uses it, else None; neither torch nor CUDA is started."""
    cuda = getattr(modules.get("torch"), "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_initialized() else None
    except (RuntimeError, AttributeError, AssertionError):  # half-imported, or a device that failed
        return None


def peak_on_device(device: Any) -> int | None:
    """Return the peak that torch's allocator has given out on a CUDA device in bytes; None for other devices."""
    cuda = used_cuda()
    if cuda is None or getattr(device, "type", "cpu") != "cuda":
        return None
    return int(cuda.max_memory_allocated(device))


def dataset_bytes(dataset: Any) -> tuple[int | None, int | None]:
    """Return the bytes of a dataset's data, and of its attributes called a cache; None if unknown.

    Counts arrays, tensors and texts in its attributes, and in lists, dictionaries and datasets below. A dataset with
    more than 10 000 such objects is not estimated.
    """
    seen: set[int] = set()
    data, cache = 0, None
    todo = [(dataset, DEPTH, False)]
    while todo:
        thing, depth, is_cache = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if len(seen) >= MOST_OBJECTS:
            return None, None
        size = len(thing) if isinstance(thing, (bytes, bytearray, str)) else getattr(thing, "nbytes", None)
        amount = size if isinstance(size, int) else 0
        if is_cache:
            cache = (cache or 0) + amount
        else:
            data += amount
        if not isinstance(size, int) and depth:
            parts = [(part, depth - 1, is_cache or "cache" in name.lower()) for name, part in _parts(thing)]
            todo += reversed(parts)
    return data or None, cache


def _parts(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, Mapping):
        return [(str(name), part) for name, part in list(thing.items())[:MOST_OBJECTS]]
    if isinstance(thing, (list, tuple)):
        return [("", part) for part in thing[:MOST_OBJECTS]]
    return list(vars(thing).items()) if hasattr(thing, "__dict__") and not isinstance(thing, type) else []
