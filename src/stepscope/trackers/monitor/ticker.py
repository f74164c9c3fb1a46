"""Do something again and again in a thread of the user's process, and stop at once when told."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

STOP_SECONDS = 0.2
"""How long `stop` waits for the thread; one that hangs in a call ends by itself, or with the process."""


class Work(Protocol):
    """What is done; only the thread touches it."""

    def tick(self) -> None:
        """Do it once. Whatever it raises is counted and told, and the next time comes."""

    def close(self) -> None:
        """Let go of what it holds."""


class Ticker:
    """A daemon thread with a rhythm.

    A forked child does not have the thread: there it is not running, and what the parent holds is left alone.
    """

    def __init__(
        self,
        name: str,
        report: Callable[[Exception], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        pid: Callable[[], int] = os.getpid,
    ) -> None:
        """Prepare; nothing starts.

        Args:
            name: of the thread.
            report: told of every error, in the thread.
            clock: seconds that only go up.
            pid: of this process.
        """
        self._name, self._report, self._clock, self._pid = name, report, clock, pid
        self._owner = -1
        self._stopping = threading.Event()
        self.thread: threading.Thread | None = None
        """The thread; None before the start and after the stop."""
        self.errors = 0
        """How often the work has raised."""

    @property
    def running(self) -> bool:
        """Whether the thread lives, in this process."""
        return self.thread is not None and self._owner == self._pid() and self.thread.is_alive()

    def start(self, make: Callable[[], Work], interval: float) -> bool:
        """Start, unless it is running. The work is made in the thread, so that the caller waits for nothing.

        Args:
            make: returns the work.
            interval: seconds from one time to the next; the first comes at once.

        Returns:
            Whether it was started.
        """
        if self.running:
            return False
        # A new event for every thread: that of a parent process may be locked for ever.
        self._stopping, self._owner = threading.Event(), self._pid()
        self.thread = threading.Thread(
            target=self._run, args=(make, max(0.001, interval), self._stopping), name=self._name, daemon=True
        )
        self.thread.start()
        atexit.register(self.stop)
        return True

    def stop(self) -> None:
        """Stop, and wait shortly until the thread has let go of everything. May be called again."""
        thread, self.thread = self.thread, None
        if thread is None or self._owner != self._pid():
            return
        atexit.unregister(self.stop)
        self._stopping.set()
        if thread is not threading.current_thread():
            thread.join(STOP_SECONDS)

    def _run(self, make: Callable[[], Work], interval: float, stopping: threading.Event) -> None:
        work = self.guarded(make)
        due = self._clock()
        try:
            while work is not None and not stopping.is_set():
                self.guarded(work.tick)
                due += interval
                now = self._clock()
                if due < now:  # late by more than a whole interval: nothing is made up for
                    due = now + interval
                stopping.wait(due - now)
        finally:
            if work is not None:
                self.guarded(work.close)

    def guarded(self, call: Callable[[], T]) -> T | None:
        """Call something; what it raises is counted and told, and the answer is None."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - sampler loop: one bad moment must not end it; counted and told
            self.errors += 1
            self._report(error)
            return None
