"""Which sources a watcher samples: those of this machine that the configuration does not switch off."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.watcher.sampling import Plan, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.samplers.sampler import Sampler
    from stepscope.watcher.journal import Journal

GROUPS = {
    **dict.fromkeys(("nvidia", "amd", "other_gpus"), "gpu"),
    **dict.fromkeys(("disk", "network"), "io"),
    "process": "processes",
}
"""Part of the configuration that a sampler belongs to, by its name; "cpu" for the others."""


def build(
    settings: Mapping[str, Any],
    run: Path,
    pids: Callable[[], Mapping[int, int]],
    journal: Journal,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> Sampling:
    """Return the sampling of this machine.

    Args:
        settings: the configuration by key; what is absent keeps its default.
        run: the run's folder, whose disk is looked at.
        pids: the training's processes by rank, at any moment.
        journal: where a source that fails is noted.
        root: where /proc and /sys lie.
        environ: the environment of the training, which says what GPUs it sees.
    """
    plan = Plan.of(settings)
    if not settings.get("samplers.enabled", True):
        return Sampling([], plan, journal)
    chosen = [sampler for sampler in _all(settings, run, pids, root, environ) if _is_on(settings, sampler)]
    intervals = {sampler.name: plan.intervals.get(_group(sampler), 0.0) for sampler in chosen}
    return Sampling(chosen, Plan(plan.interval, intervals, plan.phases, plan.budget), journal)


def _all(
    settings: Mapping[str, Any],
    run: Path,
    pids: Callable[[], Mapping[int, int]],
    root: Path,
    environ: Mapping[str, str],
) -> list[Sampler]:
    from stepscope.samplers.machine import host_samplers
    from stepscope.samplers.nvidia import NvidiaSampler

    nvidia = NvidiaSampler(
        environ.get("CUDA_VISIBLE_DEVICES"),
        all_devices=bool(settings.get("samplers.all_gpus")),
        pids=lambda: set(pids().values()),
    )
    return [*host_samplers(root, run, pids), nvidia]


def _group(sampler: Sampler) -> str:
    return GROUPS.get(sampler.name, "cpu")


def _is_on(settings: Mapping[str, Any], sampler: Sampler) -> bool:
    return bool(settings.get(f"samplers.{_group(sampler)}", True))
