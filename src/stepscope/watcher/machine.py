"""Samples this machine without a run: on demand, or periodically in a thread of the user's process."""

from __future__ import annotations

import atexit
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stepscope.core.clock import Clock
from stepscope.core.errors import in_words
from stepscope.core.walls import attempt
from stepscope.recorder.complaints import Complaints
from stepscope.watcher.journal import Journal
from stepscope.watcher.sampling import Sampling, SamplingPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.core.vocabulary import Metric
    from stepscope.samplers.sampler import Sampler

T = TypeVar("T")
STOP_SECONDS = 0.2
"""How long `stop` waits for the thread by default; a thread that hangs ends later, or with the process."""
BUDGET = 0.05
"""Share of one processor that one source may use: an interval that the user chose should be kept."""
FRESH_SECONDS, FRESH_INTERVALS = 10.0, 3
"""A value is shown until it is older than both: slow sources do not flicker, and lost ones disappear."""


def local_samplers(
    *, all_gpus: bool = False, root: Path = Path("/"), environ: Mapping[str, str] = os.environ
) -> list[Sampler]:
    """Return every source of this machine, for use without a run.

    `all_gpus` includes GPUs that CUDA_VISIBLE_DEVICES in `environ` hides; `root` holds /proc, /sys and /dev.
    """
    from stepscope.samplers.machine import host_samplers
    from stepscope.samplers.nvidia import NvidiaSampler

    nvidia = NvidiaSampler(environ.get("CUDA_VISIBLE_DEVICES"), all_gpus, set, root=root, environ=environ)
    return [*(one for one in host_samplers(root, Path.cwd(), dict) if one.name != "process"), nvidia]


def host_basics(root: Path = Path("/")) -> list[Sampler]:
    """Return the sources of processor and memory only."""
    from stepscope.samplers.cgroup import Cgroup
    from stepscope.samplers.cpu import CpuSampler
    from stepscope.samplers.memory import MemorySampler

    group = Cgroup(root)
    return [CpuSampler(root, group), MemorySampler(root, group)]


@dataclass(frozen=True)
class MachineSample:
    """The values of the machine at one time."""

    wall_ns: int
    """Nanoseconds since 1970 UTC."""
    monotonic_ns: int
    values: Mapping[str, float] = field(default_factory=dict)
    """In base units, by canonical name; unavailable values are absent. Some may be a few seconds old."""
    new: Mapping[str, float] = field(default_factory=dict)
    """Values that were read at this time: only these are recorded."""
    events: Sequence[Mapping[str, object]] = ()
    """Events since the previous call, each with its `kind`."""


class LocalMachine:
    """The sources of this machine, sampled at one interval. For one thread."""

    def __init__(self, samplers: Sequence[Sampler], interval: float = 1.0, clock: Clock | None = None) -> None:
        """Hold the samplers; `interval` is the number of seconds between two samples."""
        self._clock = clock or Clock()
        # What it notes also comes as an event, so there is no log.
        self._sampling = Sampling(samplers, SamplingPlan(interval, budget=BUDGET), Journal(Path(os.devnull)))
        self._fresh_ns = round(max(FRESH_SECONDS, FRESH_INTERVALS * interval) * 1e9)
        self._latest: dict[str, tuple[int, float]] = {}

    def look(self) -> MachineSample:
        """Sample the sources that are due, and return the current values; a source that fails is an event."""
        now = self._clock.monotonic_ns()
        found = self._sampling.round(now)
        new = {name: value for row in found.rows for name, value in row.items()}
        self._latest.update((name, (now, value)) for name, value in new.items())
        self._latest = {name: seen for name, seen in self._latest.items() if now - seen[0] <= self._fresh_ns}
        values = {name: value for name, (_, value) in self._latest.items()}
        return MachineSample(self._clock.wall_ns(), now, values, new, found.events)

    def absent(self) -> dict[str, str]:
        """Return the metrics that this machine cannot measure, with reason and remedy."""
        return self._sampling.absent()

    def metrics(self) -> list[Metric]:
        """Return the metrics that the sources declare."""
        return list(self._sampling.metrics)

    def close(self) -> None:
        """Close the sources, such as the process that reads the GPUs. May be called again."""
        self._sampling.close()


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
