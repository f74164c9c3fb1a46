"""Samples the machine periodically in a thread of the user's process."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from stepscope.core.errors import in_words
from stepscope.core.walls import attempt
from stepscope.recorder.complaints import Complaints
from stepscope.watcher.machine import LocalMachine, local_samplers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.watcher.machine import MachineSample

T = TypeVar("T")
STOP_SECONDS = 0.2
"""How long `stop` waits for the thread by default; a thread that hangs ends later, or with the process."""


def local_machine(interval: float) -> LocalMachine:
    """Return this machine with all its sources."""
    return LocalMachine(local_samplers(), min(interval, 1.0))


def whole_machine(interval: float) -> LocalMachine:
    """Return this machine with all its GPUs, also those that CUDA_VISIBLE_DEVICES hides."""
    return LocalMachine(local_samplers(all_gpus=True), min(interval, 1.0))


class MachineThread:
    """A daemon thread that samples the machine. Reading its attributes never waits: each is replaced at once.

    In a forked child the thread does not run, and the parent's sources are left alone.
    """

    def __init__(
        self,
        name: str,
        interval: float,
        make: Callable[[float], LocalMachine] = local_machine,
        *,
        on_sample: Callable[[MachineSample], None] = lambda _sample: None,
        on_end: Callable[[], None] = lambda: None,
        report: Callable[[Exception], None] | None = None,
        stop_seconds: float = STOP_SECONDS,
        pid: Callable[[], int] = os.getpid,
    ) -> None:
        """Prepare; nothing starts.

        Args:
            name: of the thread.
            interval: seconds from one sample to the next; the first comes at once.
            make: returns the machine for an interval; called in the thread, at every start.
            on_sample: called with every sample, in the thread.
            on_end: called when the thread ends, in the thread.
            report: called with every exception, in the thread; by default it is printed once per type.
            stop_seconds: how long `stop` waits for the thread.
            pid: returns the id of this process.
        """
        self.interval = interval
        self.notices = Complaints()
        self.latest: MachineSample | None = None
        """The newest sample; None before the first."""
        self.absent: Mapping[str, str] = {}
        """Sources that this machine does not have, with reason and remedy."""
        self.samples = 0
        self.errors = 0
        """Exceptions so far."""
        self.thread: threading.Thread | None = None
        """The thread; None before the start and after the stop."""
        self._name, self._make, self._on_sample, self._on_end = name, make, on_sample, on_end
        self._report, self._stop_seconds, self._pid = report or self._complain, stop_seconds, pid
        self._owner = -1
        self._stopping = threading.Event()

    @property
    def running(self) -> bool:
        """Whether the thread is alive, in this process."""
        return self.thread is not None and self._owner == self._pid() and self.thread.is_alive()

    def start(self) -> bool:
        """Start unless it is running; return whether it was started. The caller waits for nothing."""
        if self.running:
            return False
        # A new event for every thread: that of a parent process may be locked forever.
        self._stopping, self._owner = threading.Event(), self._pid()
        self.thread = threading.Thread(
            target=self._run, args=(self._stopping,), name=f"stepscope-{self._name}", daemon=True
        )
        self.thread.start()
        atexit.register(self.stop)
        return True

    def stop(self) -> None:
        """Stop, and wait briefly until the thread has closed its sources. May be called again."""
        thread, self.thread = self.thread, None
        if thread is None or self._owner != self._pid():
            return
        atexit.unregister(self.stop)
        self._stopping.set()
        if thread is not threading.current_thread():
            thread.join(self._stop_seconds)

    def guarded(self, call: Callable[[], T]) -> T | None:
        """Return the result of a call; None if it raises, which is counted and reported."""
        return attempt(call, self._failed)  # one bad sample, or a user's function, must not end the thread

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        self._report(error)

    def _run(self, stopping: threading.Event) -> None:
        machine = self.guarded(lambda: self._make(self.interval))
        if machine is None:
            return
        due = time.monotonic()
        try:
            while not stopping.is_set():
                self.guarded(lambda: self._sample(machine))
                due += self.interval
                now = time.monotonic()
                if due < now:  # late by more than an interval: missed samples are skipped
                    due = now + self.interval
                stopping.wait(due - now)
        finally:
            self.guarded(self._on_end)
            self.guarded(machine.close)

    def _sample(self, machine: LocalMachine) -> None:
        sample = machine.look()
        self.absent, self.latest = machine.absent(), sample
        self.samples += 1
        self._on_sample(sample)

    def _complain(self, error: Exception) -> None:
        text = f"cannot watch the machine ({self._name}): {in_words(error)}; it is tried again"
        self.notices.say(type(error).__name__, text)
