"""Look at the machine from a thread of the user's process, at an interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.errors import in_words
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.monitor.ticker import Ticker
from stepscope.watcher.machine import Machine, local_samplers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from stepscope.watcher.machine import Moment

SHORTEST = 0.1
"""Seconds between two looks, at least."""


def local_machine(interval: float) -> Machine:
    """Return this machine with all its sources."""
    return Machine(local_samplers(), min(interval, 1.0))


def whole_machine(interval: float) -> Machine:
    """Return this machine with all its GPUs, also those that CUDA_VISIBLE_DEVICES hides."""
    return Machine(local_samplers(all_gpus=True), min(interval, 1.0))


class MachineWatch:
    """A thread that looks at the machine. Reading its attributes never waits: each is replaced as a whole."""

    def __init__(
        self,
        name: str,
        interval: float,
        make: Callable[[float], Machine] = local_machine,
        *,
        on_moment: Callable[[Moment], None] | None = None,
        on_end: Callable[[], None] | None = None,
        notices: Complaints | None = None,
    ) -> None:
        """Prepare; nothing starts.

        Args:
            name: of the thread.
            interval: seconds, at least 0.1.
            make: returns the machine for an interval; called in the thread, at every start.
            on_moment: told of every moment, in the thread.
            on_end: called in the thread when it ends.
            notices: tells people what goes wrong, once per kind.
        """
        self.interval = max(SHORTEST, float(interval))
        self.notices = notices or Complaints()
        self.latest: Moment | None = None
        """The newest moment; None before the first."""
        self.absent: Mapping[str, str] = {}
        """What this machine cannot tell, with reason and remedy."""
        self.looks = 0
        """How often the machine was looked at."""
        self._name, self._make, self._on_moment, self._on_end = name, make, on_moment, on_end
        self.ticker = Ticker(f"stepscope-{name}", self._report)

    def start(self) -> bool:
        """Start, unless it is running; return whether it was started."""
        return self.ticker.start(lambda: _Looking(self, self._make(self.interval)), self.interval)

    def stop(self) -> None:
        """Stop promptly. May be called again, and `start` after it."""
        self.ticker.stop()

    def take(self, moment: Moment, absent: Mapping[str, str]) -> None:
        """Take in a moment; called by the thread."""
        self.absent, self.latest = absent, moment
        self.looks += 1
        if self._on_moment is not None:
            self._on_moment(moment)

    def end(self) -> None:
        """Be told that the thread ends."""
        if self._on_end is not None:
            self._on_end()

    def _report(self, error: Exception) -> None:
        text = f"cannot watch the machine ({self._name}): {in_words(error)}; it is tried again"
        self.notices.say(f"{type(error).__name__}", text)


class WatchedMachine:
    """What the monitors of the machine have in common: start, stop, `with`, and the newest sample."""

    def __init__(self, watch: MachineWatch) -> None:
        """Prepare; nothing starts."""
        self._watch = watch

    @property
    def is_monitoring(self) -> bool:
        """Whether it samples, in this process."""
        return self._watch.ticker.running

    @property
    def absent(self) -> dict[str, str]:
        """What this machine cannot tell, with the reason and the remedy."""
        return dict(self._watch.absent)

    @property
    def values(self) -> dict[str, float]:
        """Everything of the newest sample, in base units and by canonical name."""
        return dict(self._watch.latest.values) if self._watch.latest is not None else {}

    def start_monitoring(self) -> None:
        """Begin to sample. A second start is harmless."""
        self._watch.start()

    def stop_monitoring(self) -> None:
        """Stop promptly and close what is open. What was sampled stays readable, and a new start goes on."""
        self._watch.stop()

    def __enter__(self) -> Self:
        self.start_monitoring()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop, whatever happened."""
        self.stop_monitoring()


class _Looking:
    """What the thread does."""

    def __init__(self, watch: MachineWatch, machine: Machine) -> None:
        self._watch, self._machine = watch, machine

    def tick(self) -> None:
        """Look once."""
        self._watch.take(self._machine.look(), self._machine.absent())

    def close(self) -> None:
        """Let go of the sources."""
        try:
            self._watch.end()
        finally:
            self._machine.close()
