"""Processors: total use and use of each, relative to the limit; load, clock, steal and I/O wait."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stepscope.core.vocabulary import BY_NAME, gauge
from stepscope.samplers.cgroup import Cgroup
from stepscope.samplers.kernel import KernelFile, entries, find_number, number
from stepscope.samplers.sampler import Sampler

FREQUENCIES = 16
"""Maximum processors whose clock is read, spread over the machine: each read may wake one up."""
FREQUENCY_EVERY = 5_000_000_000
"""ns."""

METRICS = (
    BY_NAME["cpu/usage_ratio"],
    gauge("cpu/machine_usage_ratio", "CPU time in use, as a share of all CPUs of the machine."),
    gauge("cpu/*/usage_ratio", "Share of time in which this CPU was in use."),
    gauge("cpu/iowait_ratio", "Share of the machine's CPU time spent waiting for disks."),
    gauge("cpu/steal_ratio", "Share of the machine's CPU time taken by other virtual machines."),
    gauge("cpu/count", "CPUs of the machine that are online.", "processors"),
    gauge("cpu/load_1m", "Tasks that run or wait for a CPU or disk, mean over 1 minute."),
    gauge("cpu/load_5m", "Tasks that run or wait for a CPU or disk, mean over 5 minutes."),
    gauge("cpu/load_15m", "Tasks that run or wait for a CPU or disk, mean over 15 minutes."),
    gauge("cpu/frequency_hertz", "CPU clock, mean over up to 16 CPUs."),
)


class Ticks(NamedTuple):
    """CPU time since boot, in kernel ticks."""

    busy: int
    idle: int
    iowait: int
    steal: int


def parse_stat(data: bytes) -> dict[str, Ticks]:
    """Return the ticks of each `cpu…` line of /proc/stat; "" is the sum over all processors."""
    found = {}
    for line in data.splitlines():
        if not line.startswith(b"cpu"):
            break  # these lines come first, and the interrupts line that follows is long
        words = line.split()
        user, nice, system, idle, iowait, irq, softirq, steal = map(number, words[1:9])
        busy = user + nice + system + irq + softirq + steal
        found[words[0][3:].decode("ascii", "replace")] = Ticks(busy, idle, iowait, steal)
    if "" not in found:
        raise ValueError("no line of processor time in /proc/stat")
    return found


def parse_load(data: bytes) -> tuple[float, float, float]:
    """Return the three averages of /proc/loadavg."""
    one, five, fifteen = (float(word) for word in data.split()[:3])
    return one, five, fifteen


class Shares(NamedTuple):
    """Shares of the CPU time between two samples."""

    usage: float
    iowait: float
    steal: float


def shares(before: Ticks | None, after: Ticks) -> Shares | None:
    """Return the shares of the time between two samples; None without an earlier sample or a tick in between."""
    if before is None:
        return None
    busy, idle, iowait, steal = (max(0, new - old) for old, new in zip(before, after, strict=True))
    total = busy + idle + iowait
    return Shares(busy / total, iowait / total, min(steal, busy) / total) if total else None


class CpuSampler(Sampler):
    """Read /proc/stat, /proc/loadavg, the clocks and the control group below `root`."""

    name = "cpu"
    metrics = METRICS

    def __init__(self, root: Path = Path("/"), group: Cgroup | None = None) -> None:
        """Read the machine whose /proc is below `root`, and the limits of `group`, by default our own."""
        self._stat = KernelFile(f"{root}/proc/stat")
        self._load = KernelFile(f"{root}/proc/loadavg")
        self._group = group or Cgroup(root)
        self._before: dict[str, Ticks] = {}
        self._used: tuple[int, float] | None = None
        self._clocks = _clocks(f"{root}/sys/devices/system/cpu")
        self._clock_due: int | None = None

    def sample(self, now: int) -> dict[str, float]:
        """Return shares of CPU time since the last call, load and clock; the first call has no shares."""
        before, after = self._before, parse_stat(self._stat.read())
        self._before = after
        values: dict[str, float] = {"cpu/count": float(len(after) - 1)}
        for core, ticks in after.items():
            part = shares(before.get(core), ticks)
            if part is None:
                continue
            if core:
                values[f"cpu/{core}/usage_ratio"] = part.usage
            else:
                values["cpu/usage_ratio"] = values["cpu/machine_usage_ratio"] = part.usage
                values["cpu/iowait_ratio"], values["cpu/steal_ratio"] = part.iowait, part.steal
        self._against_limit(values, now)
        values["cpu/load_1m"], values["cpu/load_5m"], values["cpu/load_15m"] = parse_load(self._load.read())
        if self._clocks and (self._clock_due is None or now >= self._clock_due):
            self._clock_due = now + FREQUENCY_EVERY
            clocks = [clock for path in self._clocks if (clock := find_number(path))]
            if clocks:
                values["cpu/frequency_hertz"] = sum(clocks) * 1000.0 / len(clocks)
        return values

    def _against_limit(self, values: dict[str, float], now: int) -> None:
        """Replace the machine's share by that of the group's own limit, if it has one."""
        use = self._group.cpu(now)
        before, self._used = self._used, None
        if use is None or use.limit is None or use.used_seconds is None:
            return
        self._used = (now, use.used_seconds)
        values.pop("cpu/usage_ratio", None)
        if before is not None and now > before[0] and use.used_seconds >= before[1]:
            values["cpu/usage_ratio"] = (use.used_seconds - before[1]) * 1e9 / (now - before[0]) / use.limit

    def absent(self) -> dict[str, str]:
        """Return what this machine does not provide."""
        reasons = {}
        if not Path(self._stat.path).exists():
            reasons["cpu"] = "no /proc/stat; Linux has it"
        if not self._clocks:
            reasons["cpu/frequency_hertz"] = "no cpufreq in /sys; virtual machines seldom have it, ask the host"
        return reasons


def _clocks(folder: str) -> list[str]:
    found = [f"{folder}/cpufreq/{name}/scaling_cur_freq" for name in entries(f"{folder}/cpufreq") if "policy" in name]
    return found[:: max(1, -(-len(found) // FREQUENCIES))]
