"""Memory while a model trains: of torch's allocator on each GPU, per step and per phase, and of the host process.

Nothing here starts CUDA, waits for a device or resets a peak that the program may read itself. There are no GPU values
before the program uses CUDA. Not verified on hardware: the tests drive this code with a stand-in for `torch.cuda`.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from stepscope.integrations.numerics.cadence import Cadence
from stepscope.integrations.process_memory import peak_by_usage, resident, used_cuda
from stepscope.integrations.walls import Failures

if TYPE_CHECKING:
    from collections.abc import Callable

SNAPSHOT_EVERY = 20
"""The largest free block is measured this many times less often, because that examines every block."""


class DeviceMemory:
    """Record memory at the end of steps, and what is allocated at the end of phases."""

    def __init__(
        self,
        run: Any,
        every: int = 1,
        clock: Callable[[], float] = time.perf_counter,
        budget: float | None = 0.002,
        torch: Any = None,
        host: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        """Record into `run`, at most every `every` steps and for `budget` of the training's time (None: no limit).

        `clock` returns seconds, `host` the values of the host; `torch` is by default the module that the program has
        loaded.
        """
        self._run, self._torch, self._host = run, torch, host or host_memory
        self._cadence = Cadence(every, budget, clock)
        self._snapshots = Cadence(every * SNAPSHOT_EVERY, budget, clock)
        self._phases: dict[str, float] = {}
        self.watching = False
        """Whether the phases of this step are measured."""
        self.failures = Failures(run, "memory")

    def phase_end(self, phase: str) -> None:
        """Note what each GPU has allocated at the end of a phase, if this step is measured."""
        if not self.watching or self.failures.over:
            return
        with self.failures:
            for index, found in allocator_memory(self._cuda()).items():
                self._phases[f"gpu/{index}/memory_after_{phase}_bytes"] = found["memory_allocated_bytes"]

    def skip(self, count: int) -> None:
        """Count steps that have ended."""
        self._cadence.step(count)
        self._snapshots.step(count)

    def step_end(self, step: int | None = None) -> None:
        """Record the memory of this step if that is due; `step` is its index, None for the current one."""
        if self.failures.over or not self._run.recording:
            return
        with self.failures:
            if self._cadence.due():
                start = self._cadence.start()
                row = {**self._host(), **self._gpus(), **self._phases}
                self._run.log(row, step=step)
                self._cadence.stop(start)
        self._phases = {}
        self.skip(1)
        self.watching = self._cadence.due() and self._cuda() is not None

    def _cuda(self) -> Any:
        """Return torch's CUDA module if the program already uses it, else None."""
        return used_cuda(sys.modules if self._torch is None else {"torch": self._torch})

    def _gpus(self) -> dict[str, float]:
        cuda = self._cuda()
        gpus = allocator_memory(cuda)
        if gpus and self._snapshots.due():
            start = self._snapshots.start()
            for index, value in largest_free(_segments(cuda)).items():
                if index in gpus:
                    gpus[index]["memory_largest_free_bytes"] = value
            self._snapshots.stop(start)
        return {f"gpu/{index}/{name}": value for index, row in gpus.items() for name, value in row.items()}


def allocator_memory(cuda: Any) -> dict[int, dict[str, float]]:
    """Return the memory of torch's allocator in bytes, for each GPU on which this process has reserved any.

    Fragmentation is the share of the reserved memory that is free, but in blocks that cannot be released.
    """
    gpus: dict[int, dict[str, float]] = {}
    for index in range(0 if cuda is None else cuda.device_count()):
        found = cuda.memory_stats_as_nested_dict(index)
        if not found.get("reserved_bytes", {}).get("all", {}).get("peak", 0):
            continue
        reserved = float(found["reserved_bytes"]["all"]["current"])
        gpus[index] = {
            "memory_allocated_bytes": float(found["allocated_bytes"]["all"]["current"]),
            "memory_reserved_bytes": reserved,
            "memory_peak_bytes": float(found["allocated_bytes"]["all"]["peak"]),
        }
        split = found.get("inactive_split_bytes")
        if split is not None and reserved:
            gpus[index]["memory_fragmentation_ratio"] = float(split["all"]["current"]) / reserved
    return gpus


def _segments(cuda: Any) -> list[dict[str, Any]]:
    """Return the allocator's segments, without traces if torch can leave them out."""
    try:
        segments: list[dict[str, Any]] = cuda.memory_snapshot(include_traces=False)
    except TypeError:  # torch before 2.10
        segments = cuda.memory_snapshot()
    return segments


def largest_free(segments: list[dict[str, Any]]) -> dict[int, float]:
    """Return the largest free block of each GPU, in bytes, from the allocator's segments."""
    found: dict[int, float] = {}
    for segment in segments:
        free = [block["size"] for block in segment.get("blocks", ()) if block.get("state") == "inactive"]
        index = int(segment.get("device", 0))
        found[index] = max(found.get(index, 0.0), float(max(free, default=0)))
    return found


def host_memory() -> dict[str, float]:
    """Return the current and the peak resident memory of this process in bytes; unavailable values are left out."""
    sizes = {"memory/peak_bytes": peak_by_usage(), "memory/resident_bytes": resident()}
    return {name: float(size) for name, size in sizes.items() if size is not None}
