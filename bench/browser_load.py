"""CPU of all processes of a browser that this process drives."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.processes import cpu_seconds, tree


def browser_pids() -> list[int]:
    """Return the pids of the browser's processes below this one, without Playwright's own driver."""
    return [pid for pid in tree(os.getpid()) if "chrom" in _program(pid)]


def _program(pid: int) -> str:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    except OSError:
        return ""


def _seconds(pid: int) -> float:
    try:
        return cpu_seconds(pid)[0]
    except OSError:
        return 0.0


class Load:
    """What browser and server use from now on."""

    def __init__(self, server: int) -> None:
        """Begin; `server` is the server's pid."""
        self._server, self._began = server, time.monotonic()
        self._before = {pid: _seconds(pid) for pid in browser_pids()}
        self._server_before = self._of_server()

    def _of_server(self) -> float:
        return sum(_seconds(pid) for pid in tree(self._server))

    def ratios(self) -> tuple[float, float]:
        """Return the CPU of the browser and of the server since the beginning, as shares of one core."""
        passed = time.monotonic() - self._began
        browser = sum(_seconds(pid) - self._before.get(pid, 0.0) for pid in browser_pids())
        return browser / passed, (self._of_server() - self._server_before) / passed
