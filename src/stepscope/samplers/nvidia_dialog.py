"""Query the helper process without blocking, whatever it does: never wait longer than asked.

A silent helper is abandoned, and restarted later with growing pauses.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from typing import IO, TYPE_CHECKING, Any, cast

from stepscope.core.spawn import SpawnError, arguments, interpreter
from stepscope.samplers.nvidia_metrics import HUNG_REMEDY, cannot_start

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self._pipes = cast("tuple[IO[bytes], IO[bytes]]", (self._process.stdin, self._process.stdout))
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)

    def send(self, request: dict[str, Any]) -> None:
        """Send one request; at most one may be unanswered."""
        try:
            self._pipes[0].write(json.dumps(request).encode() + b"\n")
        except (BrokenPipeError, ValueError):  # its last output may still be in the other pipe
            self.ended = True

    def receive(self, wait: float = 0.0) -> list[dict[str, Any]]:
        """Return the answers received; wait up to `wait` seconds if there are none."""
        pipe = self._pipes[1]
        if pipe.closed:
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
        for pipe in self._pipes:
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


RARELY = {"pcie": 1.0, "slow": 10.0, "devices": 60.0}
"""Seconds between two requests for PCIe traffic, for slowly changing values, and for the list of GPUs."""
START_SECONDS = 8.0
"""Deadline of the first answer: without persistence mode the driver wakes the GPUs first."""
BACK_OFF = (30.0, 60.0, 120.0, 240.0, 480.0, 600.0)
MOST_STUCK = 2
"""Maximum processes stuck in the driver; with this many, another one would only get stuck too."""


class Dialog:
    """One request at a time to a helper that may die, hang or never start."""

    def __init__(self, deadline: float, patience: float, start: Callable[[], Link] = Link) -> None:
        """Abandon a helper after `deadline` seconds without an answer; wait `patience` seconds after each request.

        The first exchange starts a helper with `start`.
        """
        self._deadline, self._patience, self._start = deadline, patience, start
        self._line: Link | None = None
        self._answered = self._refused = False
        self._asked: int | None = None
        self._looks = 0
        self._since: dict[str, int] = {}
        self._retry = -(1 << 62)
        self._failures = 0
        self._hung: int | None = None
        self._stuck: list[Link] = []
        self.reason = ""
        """Why there are no answers, with the remedy; empty while there are."""
        self.over = False
        """There will never be an answer on this machine; no helper is running."""
        self.events: list[dict[str, object]] = []

    def exchange(self, now: int) -> list[dict[str, Any]]:
        """Collect answers, send the next request, and return the answers, oldest first; `now` in monotonic ns."""
        self._stuck = [line for line in self._stuck if not line.gone()]
        line = None if self.over else self._line or self._begin(now)
        if line is None:
            return []
        answers = line.receive() if self._asked is not None else []
        if answers:
            self._asked = None
        if self._asked is None and not line.ended:
            self._ask(line, now)
            more = line.receive(self._patience)
            if more:
                self._asked = None
            answers += more
        else:
            self._looks += 1
        good = [answer for answer in answers if self._understood(answer, now)]
        self._judge(line, now)
        return good

    def close(self) -> None:
        """End the helpers, waiting at most 0.2 s for each; a later exchange starts a new one."""
        for line in [*self._stuck, self._line]:
            if line is not None:
                line.abandon(0.2)
        self._stuck = []
        self._line = self._asked = None

    def _begin(self, now: int) -> Link | None:
        if now < self._retry or len(self._stuck) >= MOST_STUCK:
            return None
        try:
            self._line = self._start()
        except SpawnError as error:
            self.reason = f"cannot start the process that reads the GPUs: {error}; it is tried again"
            self._later(now)
            return None
        self._answered = self._refused = False
        self._asked = None
        self._since.clear()
        return self._line

    def _ask(self, line: Link, now: int) -> None:
        request = {}
        for what, seconds in RARELY.items():
            if now - self._since.get(what, -(1 << 62)) >= seconds * 1e9:
                self._since[what], request[what] = now, True
        line.send(request)
        self._asked, self._looks = now, 0

    def _understood(self, answer: dict[str, Any], now: int) -> bool:
        """Return whether an answer holds values; one that explains why there are none ends the helper."""
        if "error" in answer:
            self.reason = cannot_start(answer["error"], answer["reason"])
            self.over = not self._failures and not self._answered and self._hung is None
            self._refused = True
            return False
        self._answered, self._failures, self.reason = True, 0, ""
        if self._hung is not None:
            self.events.append({"kind": "gpu_driver_back", "away_seconds": (now - self._hung) / 1e9})
            self._hung = None
        return True

    def _judge(self, line: Link, now: int) -> None:
        if line.ended or self._refused:
            if not self.reason:
                end = line.end()
                self.reason = f"the process that reads the GPUs has ended ({end}); another one is tried"
                self.events.append({"kind": "gpu_reader_ended", "reason": end})
            self._leave(line, now)
            return
        # Checked twice: if this process was stopped for long, the helper may have been too.
        deadline = self._deadline if self._answered else max(self._deadline, START_SECONDS)
        if self._asked is None or now - self._asked < deadline * 1e9 or self._looks < 2:
            return
        waited = (now - self._asked) / 1e9
        if self._hung is None:
            self._hung = self._asked
            self.events.append({"kind": "gpu_driver_hung", "waited_seconds": waited, "remedy": HUNG_REMEDY})
        self.reason = f"the NVIDIA driver did not answer for {waited:.0f} s; {HUNG_REMEDY}"
        self._leave(line, now)

    def _leave(self, line: Link, now: int) -> None:
        line.abandon()
        self._stuck.append(line)
        self._later(now)

    def _later(self, now: int) -> None:
        """Run without a helper until the back-off is over."""
        self._line = self._asked = None
        self._retry = now + int(BACK_OFF[min(self._failures, len(BACK_OFF) - 1)] * 1e9)
        self._failures += 1
