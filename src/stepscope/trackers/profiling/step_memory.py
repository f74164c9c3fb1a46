"""The memory that a training has in use, beside each of its steps."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stepscope.core.vocabulary import MIB
from stepscope.integrations.process_memory import STATM, resident, used_cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.trackers.monitor.training_metrics import TrainingMetrics

FRESH_NS = 100_000_000
"""Nanoseconds for which a reading is good: torch takes about 0.1 ms for its own."""


class StepMemory:
    """Fill in `cpu_memory_mb` and `gpu_memory_mb` of steps that do not say them."""

    def __init__(self, clock: Callable[[], int], statm: str = STATM, modules: Mapping[str, Any] = sys.modules) -> None:
        """Read at most every `FRESH_NS` by `clock`, monotonic; torch is taken from `modules` and never loaded."""
        self._clock, self._statm, self._modules = clock, statm, modules
        self._until = -1
        self._cpu: float | None = None
        self._gpu: float | None = None

    def fill(self, metrics: TrainingMetrics) -> None:
        """Give a step what is in use now; a value that the user gave stays."""
        now = self._clock()
        if now > self._until:
            self._until = now + FRESH_NS
            self._cpu, self._gpu = resident(self._statm), _allocated(self._modules)
        for name, value in (("cpu_memory_mb", self._cpu), ("gpu_memory_mb", self._gpu)):
            if getattr(metrics, name) is None and name not in metrics.custom:
                setattr(metrics, name, None if value is None else value / MIB)


def _allocated(modules: Mapping[str, Any]) -> float | None:
    cuda = used_cuda(modules)
    try:
        return None if cuda is None else float(cuda.memory_allocated())
    except (RuntimeError, AttributeError, AssertionError):  # a device that failed
        return None
