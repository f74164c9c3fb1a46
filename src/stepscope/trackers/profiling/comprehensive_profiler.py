"""Memory, timing and throughput of a training loop in one object, written to one JSON file."""

from __future__ import annotations

import math
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.strict_json import null
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.json_file import write_json
from stepscope.trackers.profiling.gpu_memory_profiler import GPUMemoryProfiler, LeakReport
from stepscope.trackers.profiling.throughput_tracker import ThroughputTracker
from stepscope.trackers.profiling.training_timer import TrainingTimer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

ITERATION = "iteration"
"""Name of the timing, and label of the measurements, of an iteration."""


class ComprehensiveProfiler:
    """Profile iterations: `start_iteration()`, the work, `end_iteration(num_samples=, num_tokens=)`.

    `memory`, `timer` and `throughput` are its parts, which can be used directly. Its own cost is measured and part of
    the export. Nothing here raises into the loop.
    """

    def __init__(
        self,
        device: Any = 0,
        window_size: int = 100,
        *,
        memory: GPUMemoryProfiler | None = None,
        timer: TrainingTimer | None = None,
        throughput: ThroughputTracker | None = None,
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Profile a device: its number, "cuda:1", a torch.device, or "cpu"; see `GPUMemoryProfiler`.

        The current throughput is over the last `window_size` iterations. Parts that are not given are made.
        """
        self.device = device
        self.memory = memory or GPUMemoryProfiler(device)
        self.timer = timer or TrainingTimer(device)
        self.throughput = throughput or ThroughputTracker(window_size)
        self._clock, self._wall = clock, wall
        self._notices = Complaints()
        self._began: float | None = None
        self._open = False
        self._iterations, self._own_seconds = 0, 0.0

    def start_iteration(self) -> None:
        """Begin an iteration; one that never ended is left out."""
        now = self._clock()
        if self._open:
            self._notices.say("twice", "an iteration was started before the previous one ended: that one is left out")
            self.timer.discard(ITERATION)
        if self._began is None:
            self._began = now
            self.throughput.start()
        self._open = True
        self._own_seconds += self._clock() - now
        self.timer.start(ITERATION)

    def end_iteration(self, num_samples: object = None, num_tokens: object = None) -> float:
        """End the iteration; return its seconds on the host's clock, NaN if none was begun."""
        now = self._clock()
        seconds = math.nan
        if self._open:
            seconds, self._open = self.timer.stop(ITERATION), False
            self._iterations += 1
        else:
            self._notices.say("end", "cannot time an iteration: it was not started; call start_iteration() before it")
        self.throughput.update(num_samples, num_tokens)
        self.memory.measure(ITERATION)
        self._own_seconds += self._clock() - now
        return seconds

    def set_baseline(self) -> None:
        """Take the memory in use now as the baseline; see `GPUMemoryProfiler`."""
        self.memory.set_baseline()

    def detect_leak(self, threshold_gb: float = 0.5) -> LeakReport:
        """Compare memory with the baseline and test its slope; see `GPUMemoryProfiler`."""
        return self.memory.detect_leak(threshold_gb)

    def get_summary(self) -> dict[str, Any]:
        """Return all figures as they are exported; unknown ones are NaN or None."""
        memory, lasted = self.memory, 0.0 if self._began is None else self._clock() - self._began
        return {
            "timestamp": datetime.fromtimestamp(self._wall(), timezone.utc).isoformat(timespec="seconds"),
            "device": self.device if isinstance(self.device, int) else str(self.device),
            "memory": {
                "peak_allocated_gb": memory.peak_allocated_gb,
                "mean_allocated_gb": memory.mean_allocated_gb,
                "baseline_gb": memory.baseline_gb,
                "source": memory.source,
                "unit": "GiB",
                "trend": memory.trend(ITERATION).facts(),
            },
            "timing": self.timer.get_summary(),
            "throughput": self.throughput.get_average_throughput(),
            "current_throughput": {**self.throughput.get_current_throughput(), "window": self.throughput.window_size},
            "overhead": {
                "total_sec": self._own_seconds,
                "per_iteration_sec": self._own_seconds / self._iterations if self._iterations else math.nan,
                "ratio": self._own_seconds / lasted if lasted > 0 else math.nan,
            },
        }

    def export_to_json(self, path: str | os.PathLike[str]) -> bool:
        """Write the summary to a file, unknown values as null; return False, and report it, if that fails."""
        return write_json(Path(path), self.get_summary(), null, self._notices)
