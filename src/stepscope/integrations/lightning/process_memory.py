"""The most memory that the training has had in use: on its device where it trains on one, else in its process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")


def peak_resident(status: Path = STATUS) -> int | None:
    """Return the most resident memory that this process has had, in bytes; None where the system does not say."""
    try:
        with status.open(encoding="ascii", errors="replace") as file:
            line = next(line for line in file if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most * (1 if sys.platform == "darwin" else 1024) or None


def peak_on_device(device: Any) -> int | None:
    """Return the most that torch's allocator has given out on a CUDA device, in bytes; None for others.

    Reads a counter of the host: the device is not waited for.
    """
    torch = sys.modules.get("torch")
    if torch is None or getattr(device, "type", "cpu") != "cuda" or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated(device))
