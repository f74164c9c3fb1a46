"""A program that the watcher asks something: a child with a deadline, whose answer stays in memory."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class ProgramAnswer(NamedTuple):
    """What a program answered."""

    code: int | None
    """Its exit code; None if its time was over."""
    output: bytes


class AskedProgram:
    """At most one child at a time."""

    def __init__(self, seconds: float, most_bytes: int) -> None:
        """Start nothing yet; a child has this much time, and this much of its output is read."""
        self._seconds, self._most_bytes = seconds, most_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._output, self._until = -1, 0.0

    @property
    def open(self) -> bool:
        """Whether a child is at work."""
        return self._child is not None

    def start(self, command: Sequence[str], now: float) -> None:
        """Start a program; `now` is monotonic, in seconds. Raises OSError, and then nothing runs."""
        self.close()
        nowhere = subprocess.DEVNULL
        self._output = os.memfd_create("answer")  # nobody would read a pipe, which is full at 64 KiB
        try:
            self._child = subprocess.Popen(command, stdin=nowhere, stdout=self._output, stderr=nowhere, cwd="/")
        except OSError:
            self.close()
            raise
        self._until = now + self._seconds

    def poll(self, now: float) -> ProgramAnswer | None:
        """Return the answer, once; None while there is none."""
        if self._child is None or (self._child.poll() is None and now < self._until):
            return None
        found = ProgramAnswer(self._child.poll(), os.pread(self._output, self._most_bytes, 0))
        self.close()
        return found

    def close(self) -> None:
        """End a child that is at work."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._output >= 0:
            os.close(self._output)
        self._child, self._output = None, -1
