"""Control groups, version 1, 2 or both at once: the limits that apply to this process, and the use that counts."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.vocabulary import counter, gauge
from stepscope.samplers.kernel import KernelFile, find_number, find_text, number, pairs, read_small, value_of
from stepscope.samplers.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_EVERY = 10_000_000_000
"""Lifetime of a limit once read, in ns: administrators and schedulers change limits while a job runs."""
MEMORY_FILES = {1: ("memory.usage_in_bytes", b"total_inactive_file "), 2: ("memory.current", b"inactive_file ")}
UNLIMITED = 1 << 60
"""Bytes. Version 1 writes "no limit" as a number near 2**63."""


class Hierarchy(NamedTuple):
    """The groups of one controller that a process is in."""

    version: int
    top: str
    """The folder where it is mounted."""
    names: tuple[str, ...]
    """Paths below it: the process's own group first, then its parents; the last is "", the root group."""

    def folder(self, name: str) -> str | None:
        """Return the folder of the group `name`; None if it is not a group of this process."""
        return os.path.join(self.top, name) if name in self.names else None


class MemoryUse(NamedTuple):
    """Memory in bytes of the group with the effective limit; of the process's own group if there is no limit."""

    current: int
    """Includes the page cache."""
    used: int
    """Excludes inactive cache, which the kernel reclaims before it kills anything."""
    limit: int | None


class CpuUse(NamedTuple):
    """CPU time of the group with the effective limit; of the process's own group if there is no limit."""

    used_seconds: float | None
    """None if the limit is a cpuset of a group whose time is not counted."""
    limit: float | None
    """Maximum usable processors, by quota or cpuset."""
    periods: int
    throttled_periods: int
    throttled_seconds: float


def parse_memberships(text: str) -> dict[str, str]:
    """Parse /proc/<pid>/cgroup: the group's path by controller; the empty controller is version 2."""
    found = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            found.update(dict.fromkeys(controllers.split(","), path))
    return found


def parse_mounts(text: str) -> dict[str, tuple[str, str]]:
    """Parse /proc/<pid>/mountinfo: (mounted group, mount point) by controller; the empty one is version 2."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        words, kinds = left.split(), right.split()
        if not dash or len(words) < 5 or len(kinds) < 3 or kinds[0] not in {"cgroup", "cgroup2"}:
            continue
        controllers = kinds[2].split(",") if kinds[0] == "cgroup" else [""]
        for controller in controllers:
            found.setdefault(controller, (_unescaped(words[3]), _unescaped(words[4])))
    return found


def _unescaped(word: str) -> str:
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, sign)
    return word


def find_hierarchy(controller: str, root: Path = Path("/")) -> Hierarchy | None:
    """Return this process's groups for a controller (memory, cpu, cpuacct or cpuset); None if none applies to it."""
    memberships = parse_memberships(find_text(f"{root}/proc/self/cgroup"))
    mounts = parse_mounts(find_text(f"{root}/proc/self/mountinfo"))
    for version, name in ((1, controller), (2, "")):
        if name in memberships and name in mounts:
            groups = _groups(version, root, memberships[name], mounts[name])
            enabled = (find_text(f"{groups.folder(name)}/cgroup.controllers").split() for name in groups.names)
            # Version 2 counts CPU time without a controller.
            if version == 1 or controller == "cpuacct" or any(controller in words for words in enabled):
                return groups
    return None


def _groups(version: int, root: Path, path: str, mount: tuple[str, str]) -> Hierarchy:
    """Return the process's own group and its parents up to the mount.

    A container sees its own group mounted at the root while its path may still be the host's, or start with `/..`.
    """
    mounted, where = mount
    top = os.path.join(root, where.lstrip("/"))
    inside = path[len(mounted) :] if mounted != "/" and f"{path}/".startswith(f"{mounted}/") else path
    parts = [part for part in inside.split("/") if part]
    if ".." in parts or "\0" in inside or not os.path.isdir(os.path.join(top, *parts)):
        parts = []
    return Hierarchy(version, top, tuple("/".join(parts[:depth]) for depth in range(len(parts), -1, -1)))


def count_processors(text: str) -> int:
    """Return the number of processors in a list such as `0-3,8`; raise ValueError for an invalid list."""
    count = 0
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        count += max(0, int(last or first) - int(first) + 1)
    return count


class Cgroup:
    """The groups that limit a process; follows moves to other groups and changed limits."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Watch this process, of the system below `root`."""
        self._root = root
        self._looked: int | None = None
        self._membership = ""
        self._files: dict[str, KernelFile] = {}
        self.memory_groups: Hierarchy | None = None
        self.cpu_groups: Hierarchy | None = None
        self._account: Hierarchy | None = None
        self._cpuset: Hierarchy | None = None
        self._memory_limit: tuple[str, float | None] = ("", None)
        self._cpu_limit: tuple[str, float | None] = ("", None)

    def look(self, now: int) -> None:
        """Find the groups and their limits, again every 10 s; `now` is monotonic time in ns."""
        if self._looked is not None and now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        membership = find_text(f"{self._root}/proc/self/cgroup")
        if membership != self._membership:
            self._membership = membership
            self._files.clear()
            self.memory_groups = find_hierarchy("memory", self._root)
            self.cpu_groups = find_hierarchy("cpu", self._root)
            self._account = find_hierarchy("cpuacct", self._root)
            self._cpuset = find_hierarchy("cpuset", self._root)
        self._memory_limit = _tightest(_limits(self.memory_groups, _memory_limit), self.memory_groups)
        machine = count_processors_online(self._root) or math.inf
        limits = [*_limits(self.cpu_groups, _cpu_quota), *_limits(self._cpuset, _cpu_set)]
        self._cpu_limit = _tightest([limit for limit in limits if limit[0] < machine], self.cpu_groups or self._account)

    def memory(self, now: int) -> MemoryUse | None:
        """Return the memory that counts against the tightest limit; None without a memory controller."""
        self.look(now)
        groups, (name, limit) = self.memory_groups, self._memory_limit
        folder = groups.folder(name) if groups else None
        if groups is None or folder is None:
            return None
        current_file, inactive_key = MEMORY_FILES[groups.version]
        try:
            current = number(self._read(f"{folder}/{current_file}"))
            inactive = value_of(self._read(f"{folder}/memory.stat"), inactive_key) or 0
        except FileNotFoundError:  # the machine's version 2 root group counts nothing
            return None
        return MemoryUse(current, max(0, current - inactive), None if limit is None else int(limit))

    def cpu(self, now: int) -> CpuUse | None:
        """Return the CPU time that counts against the tightest limit; None without a cpu controller."""
        self.look(now)
        name, limit = self._cpu_limit
        folder = self.cpu_groups.folder(name) if self.cpu_groups else None
        try:
            stat = pairs(self._read(f"{folder}/cpu.stat")) if folder else {}
            used = self._used_seconds(name, stat)
        except FileNotFoundError:
            return None
        if not stat and used is None and limit is None:
            return None
        throttled = stat.get(b"throttled_time", 0) / 1e9 + stat.get(b"throttled_usec", 0) / 1e6
        return CpuUse(used, limit, stat.get(b"nr_periods", 0), stat.get(b"nr_throttled", 0), throttled)

    def _used_seconds(self, name: str, stat: dict[bytes, int]) -> float | None:
        if b"usage_usec" in stat:
            return stat[b"usage_usec"] / 1e6
        folder = self._account.folder(name) if self._account else None
        if self._account is None or folder is None:
            return None
        if self._account.version == 1:
            return number(self._read(f"{folder}/cpuacct.usage")) / 1e9
        used = pairs(self._read(f"{folder}/cpu.stat")).get(b"usage_usec")
        return None if used is None else used / 1e6

    def oom_kills(self, now: int) -> int | None:
        """Return how many processes of the own group the kernel's OOM killer has killed."""
        self.look(now)
        if self.memory_groups is None:
            return None
        name = "memory.oom_control" if self.memory_groups.version == 1 else "memory.events"
        try:
            folder = self.memory_groups.folder(self.memory_groups.names[0])
            return pairs(self._read(f"{folder}/{name}")).get(b"oom_kill")
        except FileNotFoundError:
            return None

    def _read(self, path: str) -> bytes:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = KernelFile(path)
        return file.read()


def _limits(groups: Hierarchy | None, read: Callable[[int, str], float | None]) -> list[tuple[float, int, str]]:
    """Return the limit of each group that has one, with the length of the group's name and the name."""
    if groups is None:
        return []
    limits = ((read(groups.version, os.path.join(groups.top, name)), len(name), name) for name in groups.names)
    return [(limit, length, name) for limit, length, name in limits if limit is not None]


def _tightest(limits: list[tuple[float, int, str]], groups: Hierarchy | None) -> tuple[str, float | None]:
    """Return group and value of the lowest limit, the outermost on a tie; the own group without a limit."""
    if limits:
        limit, _, name = min(limits)
        return name, limit
    return groups.names[0] if groups else "", None


def _memory_limit(version: int, folder: str) -> float | None:
    limit = find_number(f"{folder}/memory.limit_in_bytes" if version == 1 else f"{folder}/memory.max")
    return None if limit is None or limit >= UNLIMITED else limit


def _cpu_quota(version: int, folder: str) -> float | None:
    if version == 1:
        quota, period = find_number(f"{folder}/cpu.cfs_quota_us"), find_number(f"{folder}/cpu.cfs_period_us")
    else:
        quota, period = parse_cpu_max(find_text(f"{folder}/cpu.max"))
    return quota / period if quota is not None and period and quota > 0 else None


def _cpu_set(version: int, folder: str) -> float | None:
    return _count_or_none(f"{folder}/cpuset.{'effective_cpus' if version == 1 else 'cpus.effective'}") or None


def parse_cpu_max(text: str) -> tuple[int | None, int | None]:
    """Parse cpu.max: quota and period in µs; (None, None) for `max` and for an invalid line."""
    words = text.split()
    if len(words) != 2 or not (words[0].isdecimal() and words[1].isdecimal()) or max(map(len, words)) > 19:
        return None, None
    return int(words[0]), int(words[1])


def count_processors_online(root: Path = Path("/")) -> int | None:
    """Return the number of online processors; None if unknown."""
    return _count_or_none(f"{root}/sys/devices/system/cpu/online")


def _count_or_none(path: str) -> int | None:
    try:
        return count_processors(read_small(path).decode("ascii", "replace"))
    except (OSError, ValueError):
        return None


METRICS = (
    gauge("cgroup/memory_limit_bytes", "Memory limit of the cgroup."),
    gauge("cgroup/memory_current_bytes", "Memory of the cgroup, including page cache."),
    gauge("cgroup/memory_used_bytes", "Memory of the cgroup, without inactive page cache."),
    gauge("cgroup/cpu_limit", "CPU limit of the cgroup.", "processors"),
    gauge("cgroup/cpu_ratio", "CPU time of the cgroup, as a share of one CPU."),
    gauge("cgroup/throttled_ratio", "Share of scheduling periods in which the CPU quota ran out."),
    counter("cgroup/throttled_seconds_total", "Time that threads were throttled."),
    counter("cgroup/oom_kills_total", "Processes of the cgroup killed because memory ran out.", "processes"),
)


class CgroupSampler(Sampler):
    """Sample the limits of this process's control group and their use; report kills by the kernel."""

    name = "cgroup"
    metrics = METRICS

    def __init__(self, root: Path = Path("/"), group: Cgroup | None = None) -> None:
        """Watch `group`, by default that of this process in the system below `root`."""
        self._group = group or Cgroup(root)
        self._cpu: tuple[int, CpuUse] | None = None
        self._kills: int | None = None

    def sample(self, now: int) -> dict[str, float]:
        """Return memory, CPU time and throttling of the limiting group; `now` is monotonic time in ns."""
        values: dict[str, float] = {}
        memory = self._group.memory(now)
        if memory is not None:
            values["cgroup/memory_current_bytes"] = float(memory.current)
            values["cgroup/memory_used_bytes"] = float(memory.used)
            if memory.limit is not None:
                values["cgroup/memory_limit_bytes"] = float(memory.limit)
        cpu = self._group.cpu(now)
        if cpu is not None:
            values |= self._cpu_values(cpu, now)
        kills = self._group.oom_kills(now)
        if kills is not None:
            values["cgroup/oom_kills_total"] = float(kills)
            self._note_kills(kills, memory)
        return values

    def _cpu_values(self, cpu: CpuUse, now: int) -> dict[str, float]:
        before, self._cpu = self._cpu, (now, cpu)
        values = {} if cpu.limit is None else {"cgroup/cpu_limit": cpu.limit}
        if cpu.periods:
            values["cgroup/throttled_seconds_total"] = cpu.throttled_seconds
        if before is None or now <= before[0]:
            return values
        earlier = before[1].used_seconds
        if cpu.used_seconds is not None and earlier is not None and cpu.used_seconds >= earlier:
            values["cgroup/cpu_ratio"] = (cpu.used_seconds - earlier) * 1e9 / (now - before[0])
        periods = cpu.periods - before[1].periods
        if periods > 0:
            values["cgroup/throttled_ratio"] = max(0, cpu.throttled_periods - before[1].throttled_periods) / periods
        return values

    def _note_kills(self, kills: int, memory: MemoryUse | None) -> None:
        before, self._kills = self._kills, kills
        if before is not None and kills > before:
            event: dict[str, object] = {"kind": "cgroup_oom_kill", "count": kills - before, "total": kills}
            if memory is not None and memory.limit is not None:
                event["limit_bytes"] = memory.limit
            self._events += (event,)

    def absent(self) -> dict[str, str]:
        """Return which controllers do not apply to this process."""
        self._group.look(0)
        reasons = {}
        if self._group.memory_groups is None:
            reasons["cgroup/memory_*"] = "no memory controller reaches this process; machine-wide values are shown"
        if self._group.cpu_groups is None:
            reasons["cgroup/cpu_*"] = "no cpu controller reaches this process; machine-wide values are shown"
        return reasons
