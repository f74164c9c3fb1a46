"""A drawn machine: four GPUs, sixteen processors, memory, disk and network, sampled once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.samplers import cgroup, cpu, disk, memory, network, nvidia_metrics, pressure, process
from stepscope.store.machine import MachineDescription

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

HOST = "node-a"
GPUS, CORES = 4, 16
GIB = 2.0**30


def machine_facts(devices: dict[str, str]) -> MachineDescription:
    """Return what the watcher of that machine says of it."""
    sources = (cgroup, cpu, disk, memory, network, nvidia_metrics, pressure, process)
    metrics = tuple(metric for source in sources for metric in source.METRICS)
    absent = {"power/cpu_watts": "no RAPL counter may be read; run as root to see it"}
    return MachineDescription(HOST, 0, metrics, absent, devices)


def machine_samples(random: np.random.Generator, count: int) -> tuple[dict[str, Array], dict[str, str]]:
    """Return a value per second of everything that is sampled, and what the devices are called."""
    samples = {**_gpus(random, count), **_host(random, count), **_process(random, count)}
    return samples, {f"gpu/{index}": "NVIDIA H100 80GB HBM3" for index in range(GPUS)}


def _gpus(random: np.random.Generator, count: int) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for index in range(GPUS):
        use = np.clip(random.normal(0.94 - 0.02 * index, 0.03, count), 0, 1)
        use[:8] = np.linspace(0, 0.9, 8)[: len(use[:8])]
        found |= {
            f"gpu/{index}/utilization_ratio": use,
            f"gpu/{index}/memory_used_bytes": np.full(count, (61 + index) * GIB) + random.normal(0, 2e8, count),
            f"gpu/{index}/memory_total_bytes": np.full(count, 80 * GIB),
            f"gpu/{index}/temperature_celsius": 45
            + 20 * (1 - np.exp(-np.arange(count) / 60))
            + random.normal(0, 0.6, count),
            f"gpu/{index}/power_watts": 120 + 540 * use + random.normal(0, 12, count),
            f"gpu/{index}/power_limit_watts": np.full(count, 700.0),
            f"gpu/{index}/sm_clock_hertz": np.full(count, 1.98e9),
        }
    uses, memory_ = [found[f"gpu/{at}/utilization_ratio"] for at in range(GPUS)], "memory_used_bytes"
    found["gpu/count"] = np.full(count, float(GPUS))
    found["gpu/mean_utilization_ratio"] = np.mean(uses, axis=0)
    found["gpu/min_utilization_ratio"] = np.min(uses, axis=0)
    found["gpu/sum_memory_used_bytes"] = np.sum([found[f"gpu/{at}/{memory_}"] for at in range(GPUS)], axis=0)
    return found


def _host(random: np.random.Generator, count: int) -> dict[str, Array]:
    cores = {
        f"cpu/{core}/usage_ratio": np.clip(random.normal(0.25 + 0.6 * (core < 5), 0.1, count), 0, 1)
        for core in range(CORES)
    }
    total = 128 * GIB
    used = 24 * GIB + 4 * GIB * (1 - np.exp(-np.arange(count) / 90)) + random.normal(0, 8e7, count)
    return {
        **cores,
        "cpu/usage_ratio": np.mean(list(cores.values()), axis=0),
        "cpu/iowait_ratio": np.abs(random.normal(0, 0.006, count)),
        "cpu/count": np.full(count, float(CORES)),
        "cpu/load_1m": np.abs(random.normal(6.5, 0.3, count)),
        "memory/total_bytes": np.full(count, total),
        "memory/used_bytes": used,
        "memory/available_bytes": total - used,
        "memory/used_ratio": used / total,
        "cgroup/memory_limit_bytes": np.full(count, total),
        "swap/used_bytes": np.zeros(count),
        "swap/total_bytes": np.full(count, 8 * GIB),
        "disk/read_bytes_per_second": np.abs(random.normal(2.4e8, 6e7, count)),
        "disk/write_bytes_per_second": np.where(np.arange(count) % 120 > 112, 1.1e9, 4e5)
        * random.uniform(0.9, 1.1, count),
        "disk/busy_ratio": np.clip(random.normal(0.2, 0.05, count), 0, 1),
        "disk/free_bytes": 1.9e12 - np.arange(count) * 3e6,
        "disk/used_ratio": 0.47 + np.arange(count) * 1e-6,
        "network/received_bytes_per_second": np.abs(random.normal(8e6, 2e6, count)),
        "network/sent_bytes_per_second": np.abs(random.normal(6e6, 2e6, count)),
        "pressure/cpu_some_ratio": np.abs(random.normal(0.02, 0.01, count)),
        "pressure/io_some_ratio": np.abs(random.normal(0.03, 0.01, count)),
    }


def _process(random: np.random.Generator, count: int) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for rank in range(GPUS):
        found |= {
            f"process/{rank}/cpu_ratio": np.clip(random.normal(1.3, 0.1, count), 0, 8),
            f"process/{rank}/memory_bytes": 5.5 * GIB + random.normal(0, 3e7, count),
            f"process/{rank}/threads": np.full(count, 42.0),
            f"process/{rank}/open_files": np.full(count, 71.0),
        }
    return found
