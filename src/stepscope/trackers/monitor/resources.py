"""Current resource use of the machine and of the framework's allocator, under compatible names."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from math import nan
from typing import TYPE_CHECKING, Any

from stepscope.core.vocabulary import GIB, MIB
from stepscope.integrations.numerics.memory import STATM, resident, used_cuda
from stepscope.watcher.machine import host_basics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.samplers.sampler import Sampler
    from stepscope.trackers.monitor.training_metrics import TrainingMetrics

FIRST_SECONDS = 0.05
"""How long the first call waits, and the shortest time between two measurements of the processor."""
FRESH_NS = 100_000_000
"""Nanoseconds for which a reading of memory is reused: reading torch's counters takes about 0.1 ms."""


class Resources:
    """Reads processor and memory; processor time is measured since the previous call."""

    def __init__(
        self,
        samplers: Callable[[], Sequence[Sampler]] = host_basics,
        *,
        modules: Mapping[str, Any] = sys.modules,
        now: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Prepare; nothing is read before the first call. torch is used if it is in `modules`, and never imported."""
        self._make, self._modules, self._now, self._sleep = samplers, modules, now, sleep
        self._samplers: Sequence[Sampler] | None = None
        self._values: dict[str, float] = {}
        self._read_at = 0

    def read(self) -> dict[str, Any]:
        """Return processor and memory in percent and GiB, and the allocator's memory of each GPU in MiB."""
        if self._samplers is None:
            self._samplers = self._make()
            self._sample()
            self._sleep(FIRST_SECONDS)
        if self._now() - self._read_at >= FIRST_SECONDS * 1e9 or "cpu/usage_ratio" not in self._values:
            self._sample()
        values = self._values
        return {
            "cpu_percent": 100.0 * values.get("cpu/usage_ratio", nan),
            "cpu_count": os.cpu_count(),
            "memory_percent": 100.0 * values.get("memory/used_ratio", nan),
            "memory_available_gb": values.get("memory/available_bytes", nan) / GIB,
            "gpu_metrics": allocator_memory(self._modules),
        }

    def _sample(self) -> None:
        self._read_at = self._now()
        for sampler in self._samplers or ():
            try:
                self._values.update(sampler.sample(self._read_at))
            except (OSError, ValueError):  # this machine does not have the source: its figures stay NaN
                continue


SHARED = Resources()


def monitor_resources() -> dict[str, Any]:
    """Return the current resource use of the machine and of the torch allocator.

    `cpu_percent` is over the time since the previous call (only the first call waits, 50 ms), `memory_percent` is of
    the memory that this process may use, `memory_available_gb` is in GiB. `gpu_metrics` has `memory_allocated`,
    `memory_reserved` and `max_memory_allocated` in MiB by `gpu_<i>`; it is empty unless this process already uses CUDA
    through torch. An unknown figure is NaN.
    """
    return SHARED.read()


def allocator_memory(modules: Mapping[str, Any] = sys.modules) -> dict[str, dict[str, float]]:
    """Return what torch's allocator holds on each GPU, in MiB; empty if this process does not use CUDA.

    Reads counters in host memory: no device is waited for, and neither torch nor CUDA is started.
    """
    cuda = used_cuda(modules)
    if cuda is None:
        return {}
    names = ("memory_allocated", "memory_reserved", "max_memory_allocated")
    try:
        return {
            f"gpu_{index}": {name: getattr(cuda, name)(index) / MIB for name in names}
            for index in range(cuda.device_count())
        }
    except (RuntimeError, AttributeError, AssertionError):  # half-imported, built without CUDA, or a device that failed
        return {}


class StepMemory:
    """Fill in `cpu_memory_mb` and `gpu_memory_mb` of steps that do not have them."""

    def __init__(self, clock: Callable[[], int], statm: str = STATM, modules: Mapping[str, Any] = sys.modules) -> None:
        """Read at most every `FRESH_NS` by `clock`, monotonic; torch is taken from `modules` and never loaded."""
        self._clock, self._statm, self._modules = clock, statm, modules
        self._until = -1
        self._sizes: dict[str, float | None] = {}

    def fill(self, metrics: TrainingMetrics) -> None:
        """Add the memory in use to a step; a value that the user gave stays."""
        now = self._clock()
        if now > self._until:
            self._until = now + FRESH_NS
            self._sizes = {"cpu_memory_mb": resident(self._statm), "gpu_memory_mb": None}
            with suppress(RuntimeError, AttributeError, AssertionError):  # a device that failed
                cuda = used_cuda(self._modules)
                self._sizes["gpu_memory_mb"] = None if cuda is None else float(cuda.memory_allocated())
        for name, size in self._sizes.items():
            if size is not None and getattr(metrics, name) is None and name not in metrics.custom:
                setattr(metrics, name, size / MIB)
