"""Sample the machine beside a training in a thread: processors, memory, GPUs, disks, network."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stepscope.core.vocabulary import MIB
from stepscope.exporters.files.monitor_rows import percent
from stepscope.trackers.monitor.machine_monitor import SHORTEST, MachineMonitor
from stepscope.watcher.machine_thread import MachineThread, local_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.watcher.machine import LocalMachine, MachineSample

FIELDS = {
    "cpu_usage_percent": ("cpu/usage_ratio", 100.0),
    "memory_usage_percent": ("memory/used_ratio", 100.0),
    "gpu_utilization": ("gpu/mean_utilization_ratio", 100.0),
    "gpu_memory_mb": ("gpu/sum_memory_used_bytes", 1 / MIB),
    "gpu_temperature": ("gpu/max_temperature_celsius", 1.0),
    "gpu_power_watts": ("gpu/sum_power_watts", 1.0),
    "disk_read_mb_s": ("disk/read_bytes_per_second", 1 / MIB),
    "disk_write_mb_s": ("disk/write_bytes_per_second", 1 / MIB),
    "network_received_mb_s": ("network/received_bytes_per_second", 1 / MIB),
    "network_sent_mb_s": ("network/sent_bytes_per_second", 1 / MIB),
}
"""The canonical metric behind each name, and the factor to its unit. Several GPUs give their mean, sum, max, sum."""


def system_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values under the names and in the units of FIELDS; unknown ones are left out."""
    found = {}
    for field, (name, factor) in FIELDS.items():
        value = values.get(name)
        if value is not None:
            cut = percent(value) if name.endswith("_ratio") else value * factor
            found[field] = value * factor if cut is None else cut
    return found


class SystemMonitor(MachineMonitor):
    """Sample the machine every `update_interval` seconds, in a daemon thread; works without a GPU.

    Assigned to `TrainingMonitor.system_monitor` it starts and stops with the training, and its figures are kept with
    those of the steps.
    """

    def __init__(
        self,
        update_interval: float = 5.0,
        *,
        history_size: int = 720,
        make_machine: Callable[[float], LocalMachine] = local_machine,
    ) -> None:
        """Prepare; nothing starts.

        Args:
            update_interval: seconds, at least 0.1.
            history_size: samples kept.
            make_machine: returns the machine to sample.
        """
        self.update_interval = float(update_interval)
        self._history: deque[dict[str, float]] = deque(maxlen=max(1, int(history_size)))
        interval = max(SHORTEST, self.update_interval)
        super().__init__(MachineThread("system", interval, make_machine, on_sample=self._add))

    @property
    def samples(self) -> int:
        """Samples so far."""
        return self._thread.samples

    def get_current_metrics(self) -> dict[str, float]:
        """Return the newest figures; those that this machine does not have are left out.

        `timestamp` is in seconds since 1970. Empty before the first sample. Shares of time and rates need two samples.
        """
        latest = self._thread.latest
        return {} if latest is None else _stamped(latest)

    def get_history(self) -> list[dict[str, float]]:
        """Return the newest samples, oldest first."""
        return list(self._history)

    def _add(self, moment: MachineSample) -> None:
        self._history.append(_stamped(moment))


def _stamped(moment: MachineSample) -> dict[str, float]:
    return {**system_metrics(moment.values), "timestamp": moment.wall_ns / 1e9}
