"""The machine alone, without a run: its sources asked in turn, and what they tell at one moment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.clock import Clock, SystemClock
from stepscope.watcher.journal import Journal
from stepscope.watcher.sampling import Plan, Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.core.vocabulary import Metric
    from stepscope.samplers.sampler import Sampler

BUDGET = 0.05
"""Share of one processor that one source may take: whoever asks for an interval by hand wants it kept."""
FRESH_SECONDS = 10.0
FRESH_INTERVALS = 3
"""A value is shown until it is older than both: a source that is asked less often does not flicker, a lost one goes."""


def local_samplers(
    *, all_gpus: bool = False, root: Path = Path("/"), environ: Mapping[str, str] = os.environ
) -> list[Sampler]:
    """Return every source of this machine, for whoever watches it without a run.

    Args:
        all_gpus: also those that CUDA_VISIBLE_DEVICES hides.
        root: where /proc, /sys and /dev lie.
        environ: has CUDA_VISIBLE_DEVICES.
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
class Moment:
    """What the machine told at one moment."""

    wall_ns: int
    """Nanoseconds since 1970 UTC."""
    monotonic_ns: int
    values: Mapping[str, float] = field(default_factory=dict)
    """In base units, by canonical name; what is not known is not there. Some may be a few seconds old."""
    new: Mapping[str, float] = field(default_factory=dict)
    """Those that were read at this very moment: what is written down carries its time."""
    events: Sequence[Mapping[str, object]] = ()
    """What happened since the moment before, each with its `kind`."""


class Machine:
    """Samplers, asked at one interval. For one thread."""

    def __init__(self, samplers: Sequence[Sampler], interval: float = 1.0, clock: Clock | None = None) -> None:
        """Hold the samplers; none is asked yet.

        Args:
            samplers: one per source.
            interval: seconds between two moments.
            clock: both clocks.
        """
        self._clock = clock or SystemClock()
        self._samplers = samplers
        # What it would note comes as events too, and nobody keeps a log here.
        self._sampling = Sampling(samplers, Plan(interval, budget=BUDGET), Journal(Path(os.devnull)))
        self._fresh_ns = round(max(FRESH_SECONDS, FRESH_INTERVALS * interval) * 1e9)
        self._latest: dict[str, tuple[int, float]] = {}

    def look(self) -> Moment:
        """Ask the sources that are due, and return what is known now; a source that fails is an event."""
        now = self._clock.monotonic_ns()
        found = self._sampling.round(now)
        new = {name: value for row in found.rows for name, value in row.items()}
        self._latest.update((name, (now, value)) for name, value in new.items())
        self._latest = {name: seen for name, seen in self._latest.items() if now - seen[0] <= self._fresh_ns}
        values = {name: value for name, (_, value) in self._latest.items()}
        return Moment(self._clock.wall_ns(), now, values, new, found.events)

    def absent(self) -> dict[str, str]:
        """Return what this machine cannot tell, with reason and remedy."""
        return self._sampling.absent()

    def metrics(self) -> list[Metric]:
        """Return what the sources declare."""
        return [metric for sampler in self._samplers for metric in sampler.metrics]

    def close(self) -> None:
        """End what sources have started, such as the process that reads the GPUs. May be called again."""
        for sampler in self._samplers:
            close = getattr(sampler, "close", None)  # most hold nothing, and the protocol asks nothing of them
            if close is not None:
                close()
