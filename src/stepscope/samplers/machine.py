"""The samplers of every machine source that needs no vendor library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.samplers.amd import AmdSampler
from stepscope.samplers.cgroup import Cgroup, CgroupSampler
from stepscope.samplers.cpu import CpuSampler
from stepscope.samplers.disk import DiskSampler
from stepscope.samplers.kernel import entries
from stepscope.samplers.memory import MemorySampler
from stepscope.samplers.network import NetworkSampler
from stepscope.samplers.other_gpus import OtherGpuSampler
from stepscope.samplers.power import PowerSampler
from stepscope.samplers.pressure import PressureSampler
from stepscope.samplers.process import ProcessSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from stepscope.samplers.sampler import Sampler


def host_samplers(root: Path, disk: Path, ranks: Callable[[], Mapping[int, int]]) -> list[Sampler]:
    """Return the samplers of the host, whose proc and sys are below `root`, in reading order.

    `disk` is a path on the run's file system; `ranks` returns the pid of every rank of this node, at each sample.
    """
    group = Cgroup(root)
    return [
        CpuSampler(root, group),
        MemorySampler(root, group),
        CgroupSampler(root, group),
        PressureSampler(root),
        DiskSampler(root, disk),
        NetworkSampler(root),
        PowerSampler(root),
        ProcessSampler(ranks, root),
        AmdSampler(root, first=len(entries(f"{root}/proc/driver/nvidia/gpus"))),
        OtherGpuSampler(root),
    ]
