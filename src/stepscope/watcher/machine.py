"""Samples this machine without a run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.clock import Clock
from stepscope.watcher.journal import Journal
from stepscope.watcher.sampling import Sampling, SamplingPlan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.vocabulary import Metric
    from stepscope.samplers.sampler import Sampler

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
