"""The process in which W&B's package runs: one line of JSON per request and answer, and a deadline on each.

Nothing of W&B can be interrupted from within, so a helper that does not answer is killed, with all that it started.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from stepscope.core.spawn import SpawnError, arguments, interpreter
from stepscope.exporters.sinks.sink import SinkDownError, SinkSlowError
from stepscope.exporters.sinks.wandb.children import started_by

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = "stepscope.exporters.sinks.wandb.run_writer"
MOST_ANSWER = 1 << 20
"""Bytes of one answer."""


class HelperProcess:
    """One running helper. For one thread at a time."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Start it; SinkDownError if no process can be started."""
        try:
            command = [interpreter(), *arguments(PROGRAM)]
            # A session of its own: a Ctrl-C at a terminal is not for it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(environ),
                cwd="/",
                start_new_session=True,
            )
        except (OSError, SpawnError) as error:
            raise SinkDownError(f"W&B's helper does not start: {error}") from None
        self._in, self._out = (
            stream.fileno() for stream in (self._process.stdin, self._process.stdout) if stream is not None
        )
        for number in (self._in, self._out):
            os.set_blocking(number, False)
        self._rest = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any], until: float) -> dict[str, Any]:
        """Return the answer to a request; SinkDownError, and a dead helper, if there is none `until` (monotonic s)."""
        try:
            self._write(json.dumps(request).encode() + b"\n", until)
            answer: dict[str, Any] = json.loads(self._line(until))
        except (OSError, ValueError) as error:
            is_late = isinstance(error, TimeoutError)
            self.kill()
            code = self._process.returncode
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            if is_late:
                raise SinkSlowError("W&B does not answer in time") from None
            raise SinkDownError(f"W&B's helper ended ({how})") from None
        return answer

    def _write(self, data: bytes, until: float) -> None:
        left = memoryview(data)
        while left:
            self._wait([], [self._in], until)
            left = left[os.write(self._in, left[:65536]) :]

    def _line(self, until: float) -> bytes:
        while b"\n" not in self._rest:
            self._wait([self._out], [], until)
            portion = os.read(self._out, 65536)
            if not portion or len(self._rest) > MOST_ANSWER:
                raise ConnectionError("it ended")
            self._rest += portion
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    @staticmethod
    def _wait(readable: list[int], writable: list[int], until: float) -> None:
        left = until - time.monotonic()
        if left <= 0 or not any(select.select(readable, writable, [], left)):
            raise TimeoutError

    def kill(self) -> None:
        """End it and all that it started, at once."""
        started = started_by(self.pid)
        with contextlib.suppress(OSError):  # it has ended
            os.killpg(self.pid, signal.SIGKILL)
        for pid in started:
            with contextlib.suppress(OSError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # nobody reads what is left
                    stream.close()
