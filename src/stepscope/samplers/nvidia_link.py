"""The connection to the helper process. It never waits longer than asked, whatever the helper does."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from typing import Any

from stepscope.core.spawn import SpawnError, arguments, interpreter

_MODULE = "stepscope.samplers.nvidia_helper"
_LONGEST = 1 << 20


class Link:
    """One helper process, queried with lines of JSON."""

    def __init__(self) -> None:
        """Start the process; raises SpawnError if that is impossible."""
        command = [interpreter(), *arguments(_MODULE)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal is not meant for it
            )
        except OSError as error:
            raise SpawnError(str(error)) from error
        self.pid = self._process.pid
        self.ended = False
        """The other end is closed: the process has ended, or is about to."""
        self._rest = b""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)

    def send(self, request: dict[str, Any]) -> None:
        """Send one request; at most one may be unanswered."""
        pipe = self._process.stdin
        try:
            if pipe is not None:
                pipe.write(json.dumps(request).encode() + b"\n")
        except (BrokenPipeError, ValueError):  # its last output may still be in the other pipe
            self.ended = True

    def receive(self, wait: float = 0.0) -> list[dict[str, Any]]:
        """Return the answers received; wait up to `wait` seconds if there are none."""
        pipe = self._process.stdout
        if pipe is None or pipe.closed:
            return []
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while b"\n" not in self._rest and poll.poll(wait * 1000):
            data = pipe.read(1 << 16)
            if data is None:
                break
            if not data or len(self._rest) > _LONGEST:
                self.ended = True
                break
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def abandon(self, wait: float = 0.0) -> None:
        """Kill the process, and wait at most `wait` seconds to see whether that works."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # nothing of ours is left to write
                    pipe.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver; it dies when that call returns
            self._process.wait(wait)

    def gone(self) -> bool:
        """Return whether the process has ended; one that is stuck in the driver cannot be killed."""
        return self._process.poll() is not None

    def end(self) -> str:
        """Return how the process ended, in words."""
        try:
            code = self._process.wait(0.05)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        if code < 0:
            with contextlib.suppress(ValueError):  # a signal number without a name
                return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"
