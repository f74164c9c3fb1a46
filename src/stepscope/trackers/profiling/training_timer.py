"""Time named parts of a training loop with the host's clock, and on a GPU with its own clock, without waiting."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

from stepscope.recorder.complaints import Complaints
from stepscope.trackers.metrics.recent_values import RecentValues
from stepscope.trackers.metrics.statistics import summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

EVENTS, SYNC, HOST = "events", "sync", "host"
"""How a GPU is timed: with events in its queue; by synchronizing at both ends; not at all."""
KEPT = 10_000
"""Values per name that percentiles are taken from."""
MAX_NAMES, MAX_OPEN, MAX_PENDING = 1000, 100, 4096
"""Limits: names, open timings of one name in one thread, and timings whose GPU events have not been read."""


class TrainingTimer:
    """Start and stop named timings.

    Timings of one name may be nested: `stop` ends the one started last. Each thread has its own. `stop` without `start`
    returns NaN and counts nothing. Nothing here raises.

    If a GPU is in use, its time is measured between two events in its queue, which is right for asynchronous work and
    never waits; `get_summary` then has the GPU's time and the host's. `mode="sync"` waits for the GPU at both ends of
    each timing instead, so that `stop` returns the GPU's time at once; this slows the training down.
    """

    def __init__(
        self,
        device: Any = 0,
        mode: str = EVENTS,
        *,
        clock: Callable[[], float] = time.perf_counter,
        modules: Mapping[str, Any] = sys.modules,
    ) -> None:
        """Time work on a device: its number, "cuda:1", a torch.device, or "cpu".

        `mode` is "events", "sync" or "host" (the host's clock only). torch is used if it is in `modules`, and never
        imported.
        """
        self.device, self._clock, self._modules = device, clock, modules
        self._kind = "cuda" if isinstance(device, int) else str(device).partition(":")[0]
        self._notices = Complaints()
        # Built once: `start` and `stop` run in every step.
        self._marking = self._notices.shield("event", f"time {device}", "the host's clock is used")
        self._waiting = self._notices.shield("sync", f"wait for {device}", "the host's clock is used")
        self._reading = self._notices.shield("read", f"read a time of {device}", "it is left out")
        if mode not in (EVENTS, SYNC, HOST):
            self._notices.say("mode", f"cannot time by {mode!r}: it is not a mode; events are used")
            mode = EVENTS
        self.mode = mode
        self._open: dict[tuple[int, str], list[tuple[float, Any]]] = {}
        """Beginning and GPU event of each open timing, by thread and name."""
        self._host: dict[str, RecentValues] = {}
        self._device: dict[str, RecentValues] = {}
        self._pending: deque[tuple[str, Any, Any]] = deque()
        """Name and GPU events of timings that have not been read."""
        self._spares: list[Any] = []
        self.dropped = 0
        """GPU timings dropped because they were not read in time."""

    def start(self, name: str) -> None:
        """Begin a timing."""
        stack = self._open.setdefault((get_ident(), name), [])
        if len(stack) >= MAX_OPEN or len(self._open) > MAX_NAMES:
            self._notices.say("open", f"cannot time {name!r:.80}: too many timings are never stopped; call stop()")
            return
        if self.mode == SYNC:
            self._synchronize()
        stack.append((self._clock(), self._mark()))

    def stop(self, name: str) -> float:
        """End the timing started last; return its seconds on the host's clock, NaN if there is none."""
        stack = self._open.get((get_ident(), name))
        if not stack:
            self._notices.say("stop", f"cannot stop {name!r:.80}: it was not started in this thread; start it first")
            return math.nan
        if self.mode == SYNC:
            self._synchronize()
        began, first = stack.pop()
        seconds = self._clock() - began
        self._of(self._host, name).append(seconds)
        last = None if first is None else self._mark()
        if last is not None:
            self._pending.append((name, first, last))
            self._settle(wait=False)
            if len(self._pending) > MAX_PENDING:
                self._pending.popleft()
                self.dropped += 1
        return seconds

    def discard(self, name: str) -> None:
        """Drop the timing started last in this thread."""
        stack = self._open.get((get_ident(), name))
        if stack:
            stack.pop()

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Time a block."""
        self.start(name)
        try:
            yield
        finally:
            self.stop(name)

    def names(self) -> list[str]:
        """List the names that were timed, in the order of their first end."""
        return list(self._host)

    def get_summary(self) -> dict[str, dict[str, float | int | str | None]]:
        """Return the figures of each name: `mean_sec`, `count`, `total_sec`, `min_sec`, `max_sec`, `std_sec`,
        `p50_sec`, `p95_sec`, `p99_sec` and `last_sec`, and `clock`, which says whose they are: "device" or "host".

        Where a GPU was timed the figures are its own, and `host_mean_sec` is the host's. Percentiles are over the last
        10 000. Waits for GPU events that were not passed yet.
        """  # noqa: D205 - the list is the summary
        self._settle(wait=True)
        return {name: self._figures(name) for name in self._host}

    def _figures(self, name: str) -> dict[str, float | int | str | None]:
        host, device = self._host[name], self._device.get(name)
        chosen = host if device is None or not device.recorded else device
        recent = chosen.newest()
        figures = summarise(chosen.statistics, recent, recent[-1] if recent else None)
        del figures["nonfinite"]
        count, mean = figures.pop("count") or 0, figures.pop("mean")
        facts: dict[str, float | int | str | None] = {"mean_sec": mean, "count": count}
        facts["total_sec"] = None if mean is None else mean * count
        facts |= {f"{key}_sec": value for key, value in figures.items()}
        facts["clock"] = "host" if chosen is host else "device"
        if chosen is not host:
            facts["host_mean_sec"] = host.statistics.average
        return facts

    def _of(self, group: dict[str, RecentValues], name: str) -> RecentValues:
        if name not in group:
            group.setdefault(name, RecentValues(capacity=KEPT))
        return group[name]

    def _backend(self) -> Any:
        """Return torch's module for the device if it is already in use, else None."""
        backend = getattr(self._modules.get("torch"), self._kind, None)
        ready = getattr(backend, "is_initialized", None)
        return backend if ready is not None and hasattr(backend, "Event") and ready() else None

    def _mark(self) -> Any:
        """Put an event into the device's queue; None without a device, or while a graph is captured."""
        if self.mode == HOST:
            return None
        with self._marking:
            backend = self._backend()
            if backend is None or getattr(backend, "is_current_stream_capturing", bool)():
                return None
            event = self._spares.pop() if self._spares else backend.Event(enable_timing=True)
            event.record()
            return event
        return None

    def _synchronize(self) -> None:
        with self._waiting:
            backend = self._backend()
            if backend is not None:
                backend.synchronize(self.device)

    def _settle(self, *, wait: bool) -> None:
        """Read the timings that the device has completed, in order; `wait` for the others."""
        while self._pending:
            name, first, last = self._pending[0]
            with self._reading:
                if not last.query():
                    if not wait:
                        return
                    last.synchronize()
                self._of(self._device, name).append(first.elapsed_time(last) / 1e3)
                if len(self._spares) < MAX_OPEN:
                    self._spares += [first, last]
            self._pending.popleft()
