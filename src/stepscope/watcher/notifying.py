"""Starts the notifier when the outbox holds alerts, and again if it was killed.

The watcher itself never uses the network, and never waits for the notifier.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

from stepscope.alerts.delivery.outbox import rows_of
from stepscope.core.spawn import SpawnError, arguments, interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.alerts.delivery.notifier import Brief
    from stepscope.alerts.delivery.outbox import Queue
    from stepscope.watcher.journal import Journal

MODULE = "stepscope.watcher.notifier"
FIRST_WAIT, LONGEST_WAIT = 0.2, 60.0
"""Seconds before a notifier that failed is started again; doubled each time until it succeeds."""
MAX_LINE = 1 << 16


def start_notifier(run: str) -> subprocess.Popen[bytes]:
    """Start the notifier of a run in its own session, so that it outlives this process."""
    return subprocess.Popen(
        [interpreter(), *arguments(MODULE, run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


class Notifying:
    """The notifier of one node, as its watcher sees it."""

    def __init__(
        self,
        brief: Brief,
        queue: Queue,
        journal: Journal,
        start: Callable[[str], subprocess.Popen[bytes]] = start_notifier,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Start nothing yet."""
        self._brief, self._queue, self._journal, self._start, self._wall = brief, queue, journal, start, wall
        self._child: subprocess.Popen[bytes] | None = None
        self._output = b""
        self._seen = -1
        """Number of the last entry that a notifier has handled."""
        self._until: float | None = None
        """When (unix seconds) to start a notifier again that has nothing to send before."""
        self._not_before, self._wait = 0.0, FIRST_WAIT
        self._said_bye = False
        self.reports: list[dict[str, Any]] = []
        """Reports of notifiers about deliveries, for the watcher to collect."""
        self._wants = True
        """There may be something to send; at the start, what an earlier watcher left."""

    def send(self, events: Sequence[dict[str, Any]], only: str = "") -> None:
        """Put alerts into the outbox and notify the notifier; `only` names a single channel."""
        if not events:
            return
        self._queue.add(events, only)
        self._wants = True
        self._poke()

    def poll(self, now: float) -> None:
        """Read the notifier's reports, handle its end, start it if there is work; `now` is monotonic, in seconds."""
        if self._child is not None:
            self._hear(self._child)
            if self._child.poll() is not None:
                self._ended(self._child, now)
        if self._queue.unwritten and self._queue.flush():
            self._poke()
        is_awake = self._until is None or self._wall() >= self._until or self._queue.last > self._seen
        if self._child is None and self._wants and is_awake and now >= self._not_before:
            self._begin(now)

    def idle(self) -> bool:
        """Return whether every message has been handled."""
        return self._child is None and not self._wants

    def _begin(self, now: float) -> None:
        self._until, self._said_bye, self._output = None, False, b""
        try:
            self._child = self._start(self._brief.run)
        except (OSError, SpawnError) as error:
            self._back_off(now)
            self._journal.note(f"cannot start the notifier: {error}; trying again", "notifier")
            return
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        self._write(self._brief.line())
        self._brief.probe = False
        if self._queue.unwritten:
            self._poke()

    def _poke(self) -> None:
        """Wake the notifier, and hand over entries that the disk refused."""
        lines = [json.dumps(entry.row(), default=str).encode() + b"\n" for entry in self._queue.unwritten[:200]]
        self._write(b"".join(lines) or b"\n")

    def _write(self, data: bytes) -> None:
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError):  # full or closed: the notifier also checks every half second
                os.write(self._child.stdin.fileno(), data)

    def _hear(self, child: subprocess.Popen[bytes]) -> None:
        """Read the reports of the notifier."""
        if child.stdout is None:
            return
        with contextlib.suppress(OSError):
            self._output = (self._output + os.read(child.stdout.fileno(), MAX_LINE))[-MAX_LINE:]
        lines, _, self._output = self._output.rpartition(b"\n")
        for facts in rows_of(lines):
            with contextlib.suppress(ValueError):  # not a report of ours
                self._take(facts)

    def _take(self, facts: dict[str, Any]) -> None:
        state = facts.get("state")
        if state in {"done", "sleeps"}:
            self._said_bye, self._seen = True, int(facts.get("upto", -1))
            self._until = float(facts["until"]) if state == "sleeps" else None
        elif state == "busy":  # the notifier of an earlier watcher still runs
            self._said_bye, self._until = True, self._wall() + 1.0
        else:
            self.reports.append(facts)

    def _ended(self, child: subprocess.Popen[bytes], now: float) -> None:
        """Handle the notifier's end: done, asleep, or killed."""
        self._hear(child)
        code = child.returncode
        self._release(child)
        if self._said_bye and code == 0:
            self._wait, self._not_before = FIRST_WAIT, now
            self._wants = self._until is not None or self._queue.last > self._seen
            return
        self._journal.note(f"the notifier ended with code {code}; starting it again", "notifier ended")
        self._back_off(now)

    def _back_off(self, now: float) -> None:
        self._not_before, self._wait = now + self._wait, min(LONGEST_WAIT, self._wait * 2)

    def _release(self, child: subprocess.Popen[bytes]) -> None:
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._child = None

    def close(self) -> None:
        """Stop; a notifier that still has messages continues by itself."""
        if self._child is not None:
            self._child.returncode = self._child.returncode or 0  # nobody waits for it
            self._release(self._child)
        self._queue.close()
