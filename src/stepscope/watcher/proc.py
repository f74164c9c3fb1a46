"""Reads /proc about one process: its state, times, signals, progress, and where its threads wait."""

from __future__ import annotations

import os
from typing import NamedTuple

from stepscope.samplers.kernel import entries, find_text, pairs, read_small
from stepscope.samplers.process_files import parse_children

PROC = "/proc"
MOST_THREADS = 64
"""Maximum threads that an event describes; the first is the main one."""
MOST_PROCESSES = 64
"""Maximum processes of one tree that are read; a trainer has a few dozen workers."""
LEAST_CPU = 0.02
"""Share of one core that timers and background threads of frameworks use; less is no progress."""
LEAST_IO = 1024.0
"""Bytes per second that are too few for a training to wait for."""


class Stat(NamedTuple):
    """The fields of /proc/<pid>/stat that we use; times in clock ticks."""

    state: str
    """R running, S sleeping, D uninterruptible, T stopped, t traced, Z zombie, X dead."""
    user: int
    system: int
    children_user: int
    children_system: int
    started: int
    """Ticks after the boot: with the pid this names a process for as long as the machine is up."""
    resident_pages: int
    start_of_stack: int
    """0 if we may not inspect this process, or it is a zombie."""
    exit_code: int
    """As a wait status; 0 if we may not inspect this process."""

    @property
    def ticks(self) -> int:
        """Processor time of the process and of the children that it has waited for."""
        return self.user + self.system + self.children_user + self.children_system


def parse_stat(data: bytes) -> Stat:
    """Read the content of /proc/<pid>/stat; the name in it may hold anything, also brackets and blanks.

    Raises:
        ValueError: this is something else.
    """
    fields = data[data.rfind(b")") + 1 :].split()
    if len(fields) < 50:
        raise ValueError("not the state of a process")
    number = [int(fields[at]) for at in (11, 12, 13, 14, 19, 21, 25, 49)]
    return Stat(fields[0].decode("ascii", "replace"), *number)


def read_stat(pid: int, proc: str = PROC) -> Stat | None:
    """Return the state of a process; None if it is gone or hidden."""
    try:
        return parse_stat(read_small(f"{proc}/{pid}/stat"))
    except (OSError, ValueError):
        return None


class Signals(NamedTuple):
    """The signals of a process as bit masks: bit n-1 is signal n."""

    caught: int
    pending: int

    def catches(self, number: int) -> bool:
        """Return whether a handler is installed for this signal."""
        return bool(self.caught >> (number - 1) & 1)

    def awaits(self, number: int) -> bool:
        """Return whether this signal was sent and is still pending."""
        return bool(self.pending >> (number - 1) & 1)


def read_signals(pid: int, proc: str = PROC) -> Signals | None:
    """Return which signals a process catches and which wait for it; None if it is gone or hidden."""
    try:
        lines = read_small(f"{proc}/{pid}/status").splitlines()
        fields = (line.split(b":", 1) for line in lines if line.startswith((b"SigCgt:", b"SigPnd:", b"ShdPnd:")))
        masks = {name: int(value, 16) for name, value in fields}
        return Signals(masks[b"SigCgt"], masks[b"SigPnd"] | masks[b"ShdPnd"])
    except (OSError, ValueError, KeyError):
        return None


def threads(pid: int, proc: str = PROC, most: int = MOST_THREADS) -> list[dict[str, object]]:
    """Return number, name, state and kernel function of the first threads, which need no stacks."""
    found: list[dict[str, object]] = []
    numbers = children_of(f"{proc}/{pid}/task")
    for number in sorted(numbers, key=lambda number: (number != pid, number))[:most]:  # pids start over at their end
        place = f"{proc}/{pid}/task/{number}"
        try:
            data = read_small(f"{place}/stat")
            stat = parse_stat(data)
        except (OSError, ValueError):  # ended meanwhile
            continue
        name = data[data.find(b"(") + 1 : data.rfind(b")")].decode("utf-8", "replace")
        waits_in = find_text(f"{place}/wchan")  # "0" while it runs
        found.append(
            {"thread": number, "name": name, "state": stat.state, "waits_in": waits_in if waits_in != "0" else ""}
        )
    return found


def children_of(folder: str) -> list[int]:
    """Return the numbers that are entries of a folder of /proc, in order; [] if it is gone."""
    return sorted(int(name) for name in entries(folder) if name.isdigit())


class ProcessProgress(NamedTuple):
    """Counters that grow while a process tree works."""

    cpu_seconds: float = 0.0
    io_bytes: int = 0
    """Bytes read and written by system calls, also through sockets and pipes."""
    gpu_busy: bool = False
    """Whether the GPUs of this process have worked since the last sample; False if unknown."""


def moved(before: ProcessProgress, after: ProcessProgress, seconds: float) -> bool:
    """Return whether a process did more in `seconds` than its background threads do."""
    cpu, data = after.cpu_seconds - before.cpu_seconds, after.io_bytes - before.io_bytes
    return after.gpu_busy or cpu > LEAST_CPU * seconds or data > LEAST_IO * seconds


def read_progress(pid: int, proc: str = PROC, most: int = MOST_PROCESSES, *, gpu_busy: bool = False) -> ProcessProgress:
    """Read the counters of a process and of its descendants; a process that is gone or hidden counts nothing."""
    ticks = data = 0
    for member in tree(pid, proc, most):
        stat, calls = read_stat(member, proc), pairs(find_text(f"{proc}/{member}/io").encode())
        ticks += stat.ticks if stat else 0
        data += calls.get(b"rchar", 0) + calls.get(b"wchar", 0)
    return ProcessProgress(ticks / os.sysconf("SC_CLK_TCK"), data, gpu_busy)


def tree(pid: int, proc: str = PROC, most: int = MOST_PROCESSES) -> list[int]:
    """Return a process and its descendants, at most `most` of them."""
    found = [pid]
    for member in found:
        if len(found) >= most:
            break
        for thread in children_of(f"{proc}/{member}/task"):
            # Empty if the thread has ended, or the kernel has no such file: then only the process is read.
            children = find_text(f"{proc}/{member}/task/{thread}/children")
            found += [child for child in parse_children(children.encode()) if child not in found]
    return found[:most]
