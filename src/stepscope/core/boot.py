"""Which boot of which machine this is: what makes two monotonic clocks comparable."""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.lru_cache(maxsize=1)
def boot_id() -> str:
    """Return an id of this boot; the host name where the system does not give one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
