"""Memory while a model trains: of torch's allocator on each GPU, of this process, and of datasets.

Nothing here starts CUDA, waits for a device or resets a peak that the program may read itself. There are no GPU values
before the program uses CUDA. Not verified on hardware: the tests drive this code with a stand-in for `torch.cuda`.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.integrations.numerics.cadence import Cadence
from stepscope.integrations.walls import Failures

if TYPE_CHECKING:
    from collections.abc import Callable

SNAPSHOT_EVERY = 20
"""The largest free block is measured this many times less often, because that examines every block."""
STATUS, STATM = "/proc/self/status", "/proc/self/statm"
DEPTH = 4
"""Maximum depth of attributes, lists and dictionaries below a dataset."""
MOST_OBJECTS = 10_000
"""Maximum objects of a dataset that are examined: beyond it the answer is "unknown" rather than slow."""


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


def peak_resident(status: str | os.PathLike[str] = STATUS) -> int | None:
    """Return the peak resident memory of this process in bytes; None if it is unavailable."""
    try:
        with open(status, encoding="ascii", errors="replace") as file:
            line = next(line for line in file if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError, StopIteration):
        return peak_by_usage() or None


def peak_by_usage() -> int:
    """Return the same from a system call, which is faster and may count a parent before exec; 0 if unavailable."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident(statm: str | os.PathLike[str] = STATM) -> int | None:
    """Return the resident memory of this process in bytes; None if it is unavailable, as outside Linux."""
    try:
        with open(statm, encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def used_cuda(modules: Mapping[str, Any] = sys.modules) -> Any:
    """Return `torch.cuda` if this process already uses it, else None; neither torch nor CUDA is started."""
    cuda = getattr(modules.get("torch"), "cuda", None)
    try:
        return cuda if cuda is not None and cuda.is_initialized() else None
    except (RuntimeError, AttributeError, AssertionError):  # half-imported, or a device that failed
        return None


def peak_on_device(device: Any) -> int | None:
    """Return the peak that torch's allocator has given out on a CUDA device in bytes; None for other devices."""
    cuda = used_cuda()
    if cuda is None or getattr(device, "type", "cpu") != "cuda":
        return None
    return int(cuda.max_memory_allocated(device))


def dataset_bytes(dataset: Any) -> tuple[int | None, int | None]:
    """Return the bytes of a dataset's data, and of its attributes called a cache; None if unknown.

    Counts arrays, tensors and texts in its attributes, and in lists, dictionaries and datasets below. A dataset with
    more than 10 000 such objects is not estimated.
    """
    seen: set[int] = set()
    data, cache = 0, None
    todo = [(dataset, DEPTH, False)]
    while todo:
        thing, depth, is_cache = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if len(seen) >= MOST_OBJECTS:
            return None, None
        size = len(thing) if isinstance(thing, (bytes, bytearray, str)) else getattr(thing, "nbytes", None)
        amount = size if isinstance(size, int) else 0
        if is_cache:
            cache = (cache or 0) + amount
        else:
            data += amount
        if not isinstance(size, int) and depth:
            parts = [(part, depth - 1, is_cache or "cache" in name.lower()) for name, part in _parts(thing)]
            todo += reversed(parts)
    return data or None, cache


def _parts(thing: Any) -> list[tuple[str, Any]]:
    if isinstance(thing, Mapping):
        return [(str(name), part) for name, part in list(thing.items())[:MOST_OBJECTS]]
    if isinstance(thing, (list, tuple)):
        return [("", part) for part in thing[:MOST_OBJECTS]]
    return list(vars(thing).items()) if hasattr(thing, "__dict__") and not isinstance(thing, type) else []
