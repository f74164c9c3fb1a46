"""Start children, find the processes of a run, and read what the kernel says of them (Linux)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[1]
WATCHER, SEALER, SENDER = "stepscope.watcher.process", "stepscope.store.seal", "stepscope.watcher.sender"
TICKS = os.sysconf("SC_CLK_TCK")


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a child: it finds this repository and keeps its compiled modules."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **more}


def python(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start this interpreter with these arguments."""
    options.setdefault("env", environment())
    return subprocess.Popen([sys.executable, *arguments], **options)


def output_of(*arguments: str, **options: Any) -> tuple[str, float, float]:
    """Run Python to its end; return what it printed, its CPU seconds (start included) and its wall seconds."""
    started = time.perf_counter()
    child = python(*arguments, stdout=subprocess.PIPE, **options)
    assert child.stdout is not None
    printed = child.stdout.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    child.stdout.close()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"python {' '.join(arguments)[:200]} ended with {child.returncode}")
    return printed, usage.ru_utime + usage.ru_stime, seconds


def find(module: str, run: Path) -> list[int]:
    """Return the pids of one of our programs that works on a run (or on any below a folder).

    The short-lived process that only starts it, with -S, does not count.
    """
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            words = _arguments(int(entry.name))
            if (
                module in words
                and "-S" not in words[:4]
                and any(word == str(run) or word.startswith(f"{run}/") for word in words)
            ):
                found.append(int(entry.name))
    return found


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Return the pids of the direct children."""
    found: list[int] = []
    try:
        for thread in os.scandir(f"/proc/{pid}/task"):
            found += map(int, Path(thread.path, "children").read_text(encoding="ascii").split())
    except OSError:
        return found
    return found


def tree(pid: int) -> list[int]:
    """Return a process and everything below it."""
    return [pid, *(one for child in children(pid) for one in tree(child))]


def kill(pid: int) -> bool:
    """Send SIGKILL; say whether the process was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def alive(pid: int) -> bool:
    """Say whether a process runs: neither gone nor a zombie."""
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process, and of its children that have ended.

    Of its living threads as the scheduler counts it, in ns: the figures in `stat` come from a tick of 10 ms, which
    meets a process that wakes for moments only by chance.
    """
    fields = _stat(pid)
    ticked = (int(fields[11]) + int(fields[12])) / TICKS
    try:
        tasks = [task / "schedstat" for task in Path(f"/proc/{pid}/task").iterdir()]
        precise = sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9
    except (OSError, IndexError):  # a kernel without it, or a thread that has just ended
        precise = 0.0
    return precise or ticked, (int(fields[13]) + int(fields[14])) / TICKS


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def kib(pid: int | str, field: str, file: str = "status") -> int:
    """Return a field of /proc/PID/status or smaps_rollup, in KiB; 0 once the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)


def wait_until(done: Callable[[], bool], seconds: float, every: float = 0.02) -> bool:
    """Ask until the answer is yes, for some seconds at most; return the last answer."""
    end = time.monotonic() + seconds
    while not (answer := done()) and time.monotonic() < end:
        time.sleep(every)
    return answer
