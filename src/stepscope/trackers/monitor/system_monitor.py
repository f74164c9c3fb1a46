"""Sample the machine beside a training in a thread: processors, memory, GPUs, disks, network."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stepscope.core.vocabulary import MIB
from stepscope.exporters.files.monitor_rows import PERCENT, SYSTEM_FIELDS, percent
from stepscope.trackers.monitor.machine_monitor import SHORTEST, MachineMonitor
from stepscope.watcher.machine import MachineThread, local_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.watcher.machine import LocalMachine, MachineSample

FIELDS = {
    **{name: SYSTEM_FIELDS[name] for name in ("cpu_usage_percent", "memory_usage_percent")},
    "gpu_utilization": ("gpu/mean_utilization_ratio", PERCENT),
    "gpu_memory_mb": ("gpu/sum_memory_used_bytes", 1 / MIB),
    "gpu_temperature": ("gpu/max_temperature_celsius", 1.0),
    "gpu_power_watts": ("gpu/sum_power_watts", 1.0),
    **{name: place for name, place in SYSTEM_FIELDS.items() if name.endswith("_mb_s")},
}
"""The canonical metric behind each name, and the factor to its unit. Several GPUs give their mean, sum, max, sum."""


def system_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values under the names and in the units of FIELDS; unknown ones are left out."""
    return {
        field: percent(values[name]) if factor == PERCENT else values[name] * factor
        for field, (name, factor) in FIELDS.items()
        if name in values
    }


class SystemMonitor(MachineMonitor):
    """Sample the machine every `update_interval` seconds, in a daemon thread; works without a GPU.

    Assign it to `TrainingMonitor.system_monitor`, and it starts and stops with the training, and its figures are kept
    with those of the steps.
    """

    def __init__(
        self,
        update_interval: float = 5.0,
        *,
        history_size: int = 720,
        make_machine: Callable[[float], LocalMachine] = local_machine,
    ) -> None:
        """Prepare; nothing starts. The interval is at least 0.1 s; the newest `history_size` samples are kept."""
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
