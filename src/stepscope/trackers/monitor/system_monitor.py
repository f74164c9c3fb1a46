"""Sample the machine beside a training in a thread: processors, memory, GPUs, disks, network."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from stepscope.core.vocabulary import MIB
from stepscope.exporters.files.monitor_rows import PERCENT, SYSTEM_FIELDS, percent
from stepscope.watcher.machine import MachineThread, local_machine

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from stepscope.recorder.complaints import Complaints
    from stepscope.watcher.machine import LocalMachine, MachineSample

SHORTEST = 0.1
"""Seconds between two samples, at least."""
FIELDS = {
    **{name: SYSTEM_FIELDS[name] for name in ("cpu_usage_percent", "memory_usage_percent")},
    "gpu_utilization": ("gpu/mean_utilization_ratio", PERCENT),
    "gpu_memory_mb": ("gpu/sum_memory_used_bytes", 1 / MIB),
    "gpu_temperature": ("gpu/max_temperature_celsius", 1.0),
    "gpu_power_watts": ("gpu/sum_power_watts", 1.0),
    **{name: place for name, place in SYSTEM_FIELDS.items() if name.endswith("_mb_s")},
}
"""The canonical metric behind each name, and the factor to its unit. Several GPUs give their mean, sum, max, sum."""


class MachineMonitor:
    """Start, stop, `with`, and the newest sample."""

    def __init__(self, thread: MachineThread) -> None:
        """Prepare; nothing starts."""
        self._thread = thread

    @property
    def is_monitoring(self) -> bool:
        """Whether it samples, in this process."""
        return self._thread.running

    @property
    def absent(self) -> dict[str, str]:
        """Sources that this machine does not have, with reason and remedy."""
        return dict(self._thread.absent)

    @property
    def values(self) -> dict[str, float]:
        """Everything in the newest sample, in base units and by canonical name."""
        return dict(self._thread.latest.values) if self._thread.latest is not None else {}

    def start_monitoring(self) -> None:
        """Start to sample. A second start is harmless."""
        self._thread.start()

    def stop_monitoring(self) -> None:
        """Stop promptly and close what is open. The samples stay readable, and it can be started again."""
        self._thread.stop()

    def __enter__(self) -> Self:
        self.start_monitoring()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop_monitoring()


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
    """Return a sample under the names and in the units of FIELDS; unknown values are left out."""
    values = moment.values
    figures = {
        field: percent(values[name]) if factor == PERCENT else values[name] * factor
        for field, (name, factor) in FIELDS.items()
        if name in values
    }
    return {**figures, "timestamp": moment.wall_ns / 1e9}


class SystemAttachment:
    """Holds a SystemMonitor, or an object of the user's with some of its methods; nothing here raises."""

    def __init__(self, notices: Complaints) -> None:
        """Hold nothing; problems are reported to `notices`."""
        self._notices = notices
        self.part: Any = None
        self._seen: object = None
        self._running = False

    def put(self, part: Any, *, start: bool) -> None:
        """Hold a part in place of the one before, and start it if the training is being monitored."""
        self.stop()
        self.part, self._seen = part, None
        if start:
            self.start()

    def start(self) -> None:
        """Start the part, unless that was done or it samples already."""
        if not self._running and not getattr(self.part, "is_monitoring", False):
            self._running = self._call("start_monitoring")[0]

    def stop(self) -> None:
        """Stop the part, if it was started here."""
        if self._running:
            self._running = False
            self._call("stop_monitoring")

    def fresh(self) -> dict[str, float]:
        """Return the figures of the newest sample, once; {} until there is another."""
        result = None if self.part is None else self._call("get_current_metrics")[1]
        sample = dict(result) if isinstance(result, dict) else {}
        time = sample.pop("timestamp", None)
        if not sample or (time is not None and time == self._seen):
            return {}
        self._seen = time
        return sample

    def _call(self, method: str) -> tuple[bool, Any]:
        """Call a method that the part may have; return whether that worked, and the result."""
        call = getattr(self.part, method, None)
        if call is not None:
            with self._notices.shield(f"system {method}", f"call system_monitor.{method}()"):
                return True, call()
        return False, None
