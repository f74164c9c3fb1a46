"""Detects that the kernel killed a process because memory ran out, from its cgroup's counters and the kernel's log."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's first pid namespace; in others, the pids in the kernel's log are not ours."""
UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number of at least this size."""
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

    def __init__(self, path: str, top: str, version: int) -> None:
        """Hold the folder of the cgroup, and `top`, the visible root of its hierarchy."""
        self.path, self.top, self.version = path, top, version

    @classmethod
    def find(cls, pid: int, root: str = "") -> MemoryCgroup | None:
        """Return the cgroup that limits the memory of `pid`, or None; `root` is prefixed to every path."""
        try:
            members = _read_text(f"{root}/proc/{pid}/cgroup")
            mounts = _read_text(f"{root}/proc/self/mountinfo")
        except OSError:
            return None
        for line in members.splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            version = 2 if number == "0" and not controllers else 1
            if version == 1 and "memory" not in controllers.split(","):
                continue
            place = _mounted(mounts, path, version)
            if place is not None:
                group = cls(root + place[0], root + place[1], version)
                if group.kills() is not None:
                    return group
        return None

    def kills(self) -> int | None:
        """Return how many processes of this group were ever killed for memory; None if the group is gone."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        try:
            fields = dict(line.split(" ", 1) for line in _read_text(f"{self.path}/{name}").splitlines() if " " in line)
            return int(fields["oom_kill"])
        except (OSError, KeyError, ValueError):  # kernels before 4.13 do not count
            return None

    def limit(self) -> int | None:
        """Return the lowest limit, in bytes, of the group and those above it; None if there is no limit."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        found: list[int] = []
        path = self.path
        while path.startswith(self.top):
            try:
                found.append(int(_read_text(f"{path}/{name}")))
            except (OSError, ValueError):  # "max", or the root of version 2, which has no such file
                found.append(UNLIMITED)
            if path == self.top:
                break
            path = os.path.dirname(path)
        least = min(found, default=UNLIMITED)
        return least if least < UNLIMITED else None


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
        return self._limit or machine_bytes(self._root)


def machine_bytes(root: str = "") -> int | None:
    """Return the memory of the machine in bytes; None if the system does not report it."""
    try:
        return int(_read_text(f"{root}/proc/meminfo").split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None


def _mounted(mounts: str, path: str, version: int) -> tuple[str, str] | None:
    """Return the folder of a cgroup and the mount point above it; None if it is not mounted here."""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) < 5 or len(kinds) < 3 or kinds[0] != ("cgroup2" if version == 2 else "cgroup"):
            continue
        if version == 1 and "memory" not in kinds[2].split(","):
            continue
        inside = os.path.relpath(path, fields[3])
        if inside.startswith(".."):  # a container that only sees its own part, which is the root of the mount
            inside = "."
        top = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])  # blanks are in octal
        return os.path.normpath(f"{top}/{inside}"), top
    return None


def _read_text(path: str, limit: int = 1 << 20) -> str:
    with open(path, "rb") as file:
        return file.read(limit).decode("utf-8", "replace")
