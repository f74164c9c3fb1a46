"""A machine for tests: sources that tell what they are told, and ways to wait for a thread."""

from __future__ import annotations

import threading
import time

from stepscope.core.vocabulary import MIB
from stepscope.watcher.machine import LocalMachine

GPU = {
    "gpu/0/utilization_ratio": 0.95,
    "gpu/0/memory_used_bytes": 22500 * MIB,
    "gpu/0/memory_total_bytes": 24576 * MIB,
    "gpu/0/temperature_celsius": 75.0,
    "gpu/0/power_watts": 320.0,
    "gpu/0/fan_ratio": 0.65,
    "gpu/mean_utilization_ratio": 0.95,
    "gpu/sum_memory_used_bytes": 22500 * MIB,
    "gpu/max_temperature_celsius": 75.0,
    "gpu/sum_power_watts": 320.0,
}
HOST = {"cpu/usage_ratio": 0.5, "memory/used_ratio": 0.25, "disk/read_bytes_per_second": 3 * MIB}
NO_GPU = {"gpu": "no driver here; install one"}


class Source:
    """A sampler that tells what it is told."""

    name = "fake"
    metrics = ()

    def __init__(self, values=None, absent=None, happened=(), error=None):
        self.values, self.missing, self.happened, self.error = (
            dict(values or {}),
            dict(absent or {}),
            list(happened),
            error,
        )
        self.closed = 0
        self.threads = set()

    def sample(self, now):
        self.threads.add(threading.current_thread())
        if self.error is not None:
            raise self.error
        return dict(self.values)

    def absent(self):
        return dict(self.missing)

    def events(self):
        happened, self.happened = self.happened, []
        return happened

    def close(self):
        self.closed += 1


def machine_of(*sources):
    """Return what makes a machine with these sources, for any interval."""
    return lambda interval: LocalMachine(sources, 0.001)


def wait_until(condition, seconds=60.0):
    """Wait for a thread to have done something."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        pause.wait(0.005)
