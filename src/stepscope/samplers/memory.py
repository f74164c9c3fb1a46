"""Memory and swap: use of the machine's memory and, in a container, of the effective limit."""

from __future__ import annotations

from pathlib import Path

from stepscope.core.vocabulary import BY_NAME, gauge
from stepscope.samplers.cgroup import Cgroup
from stepscope.samplers.kernel import KernelFile, value_of
from stepscope.samplers.sampler import Sampler

METRICS = (
    gauge("memory/total_bytes", "Total memory of the machine."),
    BY_NAME["memory/used_bytes"],
    BY_NAME["memory/available_bytes"],
    gauge("memory/shared_bytes", "Memory in shared segments and tmpfs such as /dev/shm."),
    BY_NAME["memory/used_ratio"],
    gauge("memory/machine_used_ratio", "Share of the machine's memory in use."),
    gauge(
        "memory/headroom_bytes",
        "Memory left before the kernel kills a process: up to the limit of the cgroup or of the machine.",
    ),
    gauge("swap/total_bytes", "Total swap space."),
    gauge("swap/used_bytes", "Swap space in use."),
    gauge("swap/used_ratio", "Share of the machine's swap space in use."),
)


ENTRIES = ("MemTotal", "MemFree", "MemAvailable", "Shmem", "SwapTotal", "SwapFree")


def parse_meminfo(data: bytes) -> dict[str, int]:
    """Return the needed entries of /proc/meminfo, in bytes."""
    found = {name: value_of(data, f"{name}:".encode()) for name in ENTRIES}
    return {name: value * 1024 for name, value in found.items() if value is not None}


class MemorySampler(Sampler):
    """Read /proc/meminfo and the control group below `root`."""

    name = "memory"
    metrics = METRICS

    def __init__(self, root: Path = Path("/"), group: Cgroup | None = None) -> None:
        """Read the machine whose /proc is below `root`, and the limits of `group`, by default our own."""
        self._meminfo = KernelFile(f"{root}/proc/meminfo")
        self._group = group or Cgroup(root)

    def sample(self, now: int) -> dict[str, float]:
        """Return memory and swap in use; `now` is monotonic time in ns."""
        info = parse_meminfo(self._meminfo.read())
        total = info.get("MemTotal", 0)
        available = info.get("MemAvailable", info.get("MemFree", 0))
        if total <= 0 or available > total:
            raise ValueError("no total or available memory in /proc/meminfo")
        values = {
            "memory/total_bytes": float(total),
            "memory/used_bytes": float(total - available),
            "memory/available_bytes": float(available),
            "memory/machine_used_ratio": (total - available) / total,
            **self._against_limit(total, available, now),
            **_swap(info),
        }
        if "Shmem" in info:
            values["memory/shared_bytes"] = float(info["Shmem"])
        return values

    def _against_limit(self, total: int, available: int, now: int) -> dict[str, float]:
        use = self._group.memory(now)
        if use is None or not use.limit or use.limit >= total:
            return {"memory/used_ratio": (total - available) / total, "memory/headroom_bytes": float(available)}
        headroom = min(available, max(0, use.limit - use.used))
        return {"memory/used_ratio": use.used / use.limit, "memory/headroom_bytes": float(headroom)}

    def absent(self) -> dict[str, str]:
        """Return what this machine does not provide."""
        if not Path(self._meminfo.path).exists():
            return {"memory": "no /proc/meminfo; Linux has it"}
        if not parse_meminfo(self._meminfo.read()).get("SwapTotal"):
            return {"swap/used_ratio": "the machine has no swap space; none is needed"}
        return {}


def _swap(info: dict[str, int]) -> dict[str, float]:
    if "SwapTotal" not in info or "SwapFree" not in info:
        return {}
    total, used = info["SwapTotal"], max(0, info["SwapTotal"] - info["SwapFree"])
    values = {"swap/total_bytes": float(total), "swap/used_bytes": float(used)}
    return values | {"swap/used_ratio": used / total} if total else values
