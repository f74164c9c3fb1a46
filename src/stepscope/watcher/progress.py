"""Whether a process gets anywhere: processor time and input/output of it and of its descendants."""

from __future__ import annotations

import os
from typing import NamedTuple

from stepscope.watcher.proc import PROC, children_of, read_stat

MOST_PROCESSES = 64
"""Processes of one tree that are read at most; a trainer has a few dozen workers."""
LEAST_CPU = 0.02
"""Share of one core below which a process only keeps itself warm: timers and background threads of frameworks."""
LEAST_IO = 1024.0
"""Bytes per second below which nothing is moved that a training waits for."""


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
        stat = read_stat(member, proc)
        ticks += stat.ticks if stat else 0
        data += _io_bytes(member, proc)
    return ProcessProgress(ticks / os.sysconf("SC_CLK_TCK"), data, gpu_busy)


def tree(pid: int, proc: str = PROC, most: int = MOST_PROCESSES) -> list[int]:
    """Return a process and its descendants, at most `most` of them."""
    found = [pid]
    for member in found:
        if len(found) >= most:
            break
        for thread in children_of(f"{proc}/{member}/task"):
            found += [child for child in _children(f"{proc}/{member}/task/{thread}") if child not in found]
    return found[:most]


def _children(place: str) -> list[int]:
    try:
        with open(f"{place}/children", "rb") as file:
            return [int(word) for word in file.read(1 << 16).split()]
    except (OSError, ValueError):  # ended meanwhile, or a kernel without this file: the process alone must do
        return []


def _io_bytes(pid: int, proc: str) -> int:
    try:
        with open(f"{proc}/{pid}/io", "rb") as file:
            fields = dict(line.split(b": ", 1) for line in file.read(4096).splitlines())
        return int(fields[b"rchar"]) + int(fields[b"wchar"])
    except (OSError, ValueError, KeyError):  # gone, or not for us
        return 0
