"""Memory while a model trains: what torch's allocator holds of each GPU, per step and per phase, and of the host.

Nothing here starts CUDA, waits for a device or resets a peak that the program may read itself. Before CUDA is used
there are no GPU values at all. Not verified on hardware: the tests drive this code with a stand-in for `torch.cuda`.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from stepscope.integrations.numerics.cadence import Cadence
from stepscope.integrations.process_memory import peak_by_usage, resident, used_cuda
from stepscope.integrations.walls import Failures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SNAPSHOT_EVERY = 20
"""The largest free block, which needs a look at every block, is taken so many times less often."""


class DeviceMemory:
    """Record memory at the end of steps; `phase_end` tells what is allocated after a phase."""

    def __init__(
        self,
        run: Any,
        every: int = 1,
        clock: Callable[[], float] = time.perf_counter,
        budget: float | None = 0.002,
        torch: Any = None,
        host: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        """Record into `run`.

        Args:
            run: the run.
            every: steps between two looks at least.
            clock: seconds.
            budget: share of the training's time to spend at most; None for no limit.
            torch: stands for torch; by default the one that the program has loaded.
            host: returns the values of the host.
        """
        self._run, self._torch, self._host = run, torch, host or host_memory
        self._cadence = Cadence(every, budget, clock)
        self._snapshots = Cadence(every * SNAPSHOT_EVERY, budget, clock)
        self._phases: dict[str, float] = {}
        self._watching = False
        self.failures = Failures(run, "memory")

    @property
    def watching(self) -> bool:
        """Return whether the phases of this step are looked at."""
        return self._watching

    def phase_end(self, phase: str) -> None:
        """Note what each GPU has allocated at the end of a phase; costs nothing in steps that are not looked at."""
        if not self._watching or self.failures.over:
            return
        with self.failures:
            cuda = self._cuda()
            for index in _devices(cuda):
                found = _stats(cuda, index)
                self._phases[f"gpu/{index}/memory_after_{phase}_bytes"] = found["memory_allocated_bytes"]

    def skip(self, count: int) -> None:
        """Count steps that were skipped."""
        self._cadence.step(count)
        self._snapshots.step(count)

    def step_end(self, step: int | None = None) -> None:
        """Record the memory of this step, if it is to be; `step` is its index, None for the one that the run is in."""
        if self.failures.over or not self._run.recording:
            return
        with self.failures:
            if self._cadence.due():
                start = self._cadence.start()
                row = {**self._host(), **self._gpus(), **self._phases}
                self._run.log(row, step=step)
                self._cadence.stop(start)
        self._phases = {}
        self._cadence.step()
        self._snapshots.step()
        self._watching = self._cadence.due() and self._cuda() is not None

    def _cuda(self) -> Any:
        """Return torch's CUDA module if the program has begun to use it; None otherwise."""
        return used_cuda(sys.modules if self._torch is None else {"torch": self._torch})

    def _gpus(self) -> dict[str, float]:
        cuda = self._cuda()
        row: dict[str, float] = {}
        for index in _devices(cuda):
            row |= {f"gpu/{index}/{name}": value for name, value in _stats(cuda, index).items()}
        if row and self._snapshots.due():
            start = self._snapshots.start()
            row |= {
                f"gpu/{index}/memory_largest_free_bytes": value
                for index, value in largest_free(_segments(cuda)).items()
                if f"gpu/{index}/memory_reserved_bytes" in row
            }
            self._snapshots.stop(start)
        return row


def _devices(cuda: Any) -> list[int]:
    """Return the GPUs that this process has memory on: to ask for another one would start it there."""
    if cuda is None:
        return []
    return [index for index in range(cuda.device_count()) if _nested(cuda, index).get("reserved_bytes")]


def _nested(cuda: Any, index: int) -> Mapping[str, Any]:
    found: Mapping[str, Any] = cuda.memory_stats_as_nested_dict(index)
    reserved = found.get("reserved_bytes", {}).get("all", {}).get("peak", 0)
    return found if reserved else {}


def _stats(cuda: Any, index: int) -> dict[str, float]:
    """Return what the allocator says of one GPU, in bytes.

    Fragmentation is the share of the reserved memory that is free, but in blocks that cannot be given back.
    """
    found = _nested(cuda, index)
    reserved = float(found["reserved_bytes"]["all"]["current"])
    row = {
        "memory_allocated_bytes": float(found["allocated_bytes"]["all"]["current"]),
        "memory_reserved_bytes": reserved,
        "memory_peak_bytes": float(found["allocated_bytes"]["all"]["peak"]),
    }
    split = found.get("inactive_split_bytes")
    if split is not None and reserved:
        row["memory_fragmentation_ratio"] = float(split["all"]["current"]) / reserved
    return row


def _segments(cuda: Any) -> list[dict[str, Any]]:
    """Return the allocator's segments, without traces where torch can leave them out."""
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
