"""Detects that the kernel killed a process because memory ran out, from its cgroup's counters and the kernel's log."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from stepscope.samplers.cgroup import UNLIMITED, Hierarchy, parse_memberships, parse_mounts
from stepscope.samplers.kernel import find_number, find_text, pairs, read_small
from stepscope.samplers.memory import parse_meminfo

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's first pid namespace; in others, the pids in the kernel's log are not ours."""
MOST_LINES = 20_000
"""Maximum lines of the kernel's log in one read."""

_KILLED = re.compile(
    r"(?P<memcg>Memory cgroup out of memory|Out of memory).*?Killed process (?P<pid>\d+) .*?"
    r"anon-rss:(?P<anon>\d+)kB, file-rss:(?P<file>\d+)kB(?:, shmem-rss:(?P<shmem>\d+)kB)?"
)
_LIMIT = re.compile(r"^memory: usage \d+kB, limit (?P<limit>\d+)kB")


class Kill(NamedTuple):
    """One line of the kernel's log about a process that it killed."""

    pid: int
    rss: int
    """Resident bytes at that time."""
    limit: int | None
    """Bytes that the cgroup may have; None if the whole machine had run out."""
    time_us: int
    """Microseconds since the boot; tells it from the death of an earlier process with the same pid."""


class Oom(NamedTuple):
    """Evidence that a process died because memory ran out."""

    limit: int | None = None
    """Bytes."""
    rss: int | None = None
    """Resident bytes, last seen."""
    named: bool = False
    """Whether the kernel's log names the process."""
    kills: int = 0
    """Processes of its cgroup that were killed for memory since we began to watch."""
    whole_machine: bool = False


def parse_line(line: str, limit: int | None = None) -> Kill | None:
    """Parse a line of /dev/kmsg; `limit` is the cgroup's limit in bytes, from the lines before."""
    head, _, text = line.partition(";")
    match = _KILLED.search(text)
    if match is None:
        return None
    pages = sum(int(match[name] or 0) for name in ("anon", "file", "shmem"))
    fields = head.split(",")
    moment = int(fields[2]) if len(fields) > 2 and fields[2].isdecimal() else 0
    of_group = match["memcg"].startswith("Memory")
    return Kill(int(match["pid"]), pages * 1024, limit if of_group else None, moment)


class KernelLog:
    """The kernel's log since this object was made, if it may be read; one for all ranks."""

    def __init__(self, path: str = "/dev/kmsg", proc: str = "/proc") -> None:
        """Open the log at its end; without permission, it stays empty."""
        self.kills: dict[int, Kill] = {}
        self._limit: int | None = None
        self._descriptor = -1
        try:
            if os.stat(f"{proc}/self/ns/pid").st_ino == FIRST_PID_NAMESPACE:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError:
            self.close()

    @property
    def readable(self) -> bool:
        """Whether there is a log to read."""
        return self._descriptor >= 0

    def of(self, pid: int) -> Kill | None:
        """Return the kernel's last line about `pid`."""
        self._read()
        return self.kills.get(pid)

    def _read(self) -> None:
        for _ in range(MOST_LINES if self._descriptor >= 0 else 0):
            try:
                data = os.read(self._descriptor, 8192)
            except BlockingIOError:
                return
            except BrokenPipeError:  # lines were overwritten before we read them: continue after the gap
                continue
            except OSError:
                self.close()
                return
            if not data:
                return
            self._take(data.decode("utf-8", "replace"))

    def _take(self, data: str) -> None:
        for line in data.splitlines():
            match = _LIMIT.match(line.partition(";")[2])
            self._limit = int(match["limit"]) * 1024 if match else self._limit
            kill = parse_line(line, self._limit)
            if kill is not None:
                self.kills[kill.pid] = kill

    def close(self) -> None:
        """Close the log."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class MemoryCgroup:
    """The memory cgroup of a process, of version 1 or 2."""

    def __init__(self, groups: Hierarchy) -> None:
        """Hold the cgroup and those above it."""
        self._groups = groups
        self.path = os.path.normpath(f"{groups.top}/{groups.names[0]}")

    @classmethod
    def find(cls, pid: int, root: str = "") -> MemoryCgroup | None:
        """Return the cgroup that limits the memory of `pid`, or None; `root` is prefixed to every path."""
        members = parse_memberships(find_text(f"{root}/proc/{pid}/cgroup"))
        mounts = parse_mounts(find_text(f"{root}/proc/self/mountinfo"))
        for version, controller in ((1, "memory"), (2, "")):
            if controller in members and controller in mounts:
                mounted, top = mounts[controller]
                inside = os.path.relpath(members[controller], mounted)
                # A container that only sees its own part, which is the root of the mount, has a path outside of it.
                parts = [] if inside == "." or inside.startswith("..") else inside.split("/")
                names = tuple("/".join(parts[:depth]) for depth in range(len(parts), -1, -1))
                group = cls(Hierarchy(version, root + top, names))
                if group.kills() is not None:
                    return group
        return None

    def kills(self) -> int | None:
        """Return how many processes of this group were ever killed for memory; None if the group is gone."""
        name = "memory.events" if self._groups.version == 2 else "memory.oom_control"
        try:
            return pairs(read_small(f"{self.path}/{name}")).get(b"oom_kill")  # kernels before 4.13 do not count
        except (OSError, ValueError):
            return None

    def limit(self) -> int | None:
        """Return the lowest limit, in bytes, of the group and those above it; None if there is no limit."""
        name = "memory.max" if self._groups.version == 2 else "memory.limit_in_bytes"
        files = (os.path.join(self._groups.top, group, name) for group in self._groups.names)
        limits = map(find_number, files)  # None: "max", or the root of version 2
        return min((limit for limit in limits if limit is not None and limit < UNLIMITED), default=None)


class OomWatch:
    """Watches the memory of one process: compares its cgroup's counter of kills before and after the death."""

    def __init__(self, pid: int, log: KernelLog | None = None, root: str = "") -> None:
        """Find the cgroup while the process lives; afterwards /proc has no entry for it."""
        self._pid, self._log, self._root = pid, log, root
        self._before = log.of(pid) if log else None  # of an earlier process with this number
        self.group = MemoryCgroup.find(pid, root)
        self._kills = (self.group.kills() if self.group else None) or 0
        self._limit = self.group.limit() if self.group else None

    def evidence(self, rss: int | None = None) -> Oom | None:
        """Return the evidence that memory ran out, or None; `rss` is the last known resident memory in bytes."""
        kill = self._log.of(self._pid) if self._log else None
        kill = None if kill == self._before else kill
        kills = self.kills() - self._kills
        limit = self.limit()
        if kill is not None:
            return Oom(kill.limit or limit, kill.rss, named=True, kills=kills, whole_machine=kill.limit is None)
        return Oom(limit, rss, kills=kills) if kills > 0 else None

    def kills(self) -> int:
        """Return the counter of the cgroup; its first value if the cgroup is gone."""
        found = self.group.kills() if self.group else None
        return self._kills if found is None else found

    def limit(self) -> int | None:
        """Return the limit in bytes: the latest of the cgroup, otherwise the memory of the machine."""
        if self.group is not None and self.group.kills() is not None:
            self._limit = self.group.limit()
        return self._limit or parse_meminfo(find_text(f"{self._root}/proc/meminfo").encode()).get("MemTotal")
