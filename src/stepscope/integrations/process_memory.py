"""Memory of this process, and of torch's allocator. Only counters on the host are read: no device is waited for."""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

STATUS, STATM = "/proc/self/status", "/proc/self/statm"


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
