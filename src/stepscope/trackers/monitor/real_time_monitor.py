"""Sample a training periodically in a thread, compare each sample with a baseline, and send alerts."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.core.vocabulary import MIB
from stepscope.exporters.files.jsonl_log import JsonLines
from stepscope.exporters.files.monitor_rows import gpu_indices
from stepscope.trackers.monitor.resources import Resources, allocator_memory
from stepscope.trackers.monitor.system_monitor import MachineMonitor
from stepscope.watcher.machine import MachineThread, local_machine

if TYPE_CHECKING:
    import os
    import threading
    from collections.abc import Callable, Mapping
    from typing import TextIO

    from stepscope.trackers.monitor.training_monitor import TrainingMonitor
    from stepscope.watcher.machine import LocalMachine, MachineSample

    Metrics = dict[str, Any]
    Storage = Callable[[Metrics], object] | str | os.PathLike[str]

HISTORY = 1000
"""Samples kept in memory."""
FILE = "monitoring_metrics"


class RealTimeMonitor(MachineMonitor):
    """Sample loss, GPU memory and CPU usage periodically, and pass them to an alerting system.

    An exception is printed as `Monitoring error: …` and the loop goes on; the same error in a row is printed once.
    """

    def __init__(
        self,
        alerting_system: Any = None,
        *,
        training_monitor: TrainingMonitor | None = None,
        storage: Storage | None = None,
        baseline_metrics: Mapping[str, Any] | None = None,
        warmup_samples: int = 0,
        make_machine: Callable[[float], LocalMachine] = local_machine,
        resources: Resources | None = None,
        now: Callable[[], float] = time.time,
        stream: TextIO | None = None,
    ) -> None:
        """Prepare; nothing starts.

        - `alerting_system`: its `check_alerts(current, baseline)` and `send_alert(alert)` are called, if it has them.
        - `training_monitor`: the source of the loss; without one set `current_loss`.
        - `storage`: a function called with every sample, or a folder for `monitoring_metrics_*.jsonl`.
        - `baseline_metrics`: by default the first sample after the `warmup_samples`, which are not checked.
        - `stream`: where errors are printed; stderr by default.
        """
        self.alerting_system = alerting_system
        self.training_monitor = training_monitor
        self.baseline_metrics: Metrics | None = None if baseline_metrics is None else dict(baseline_metrics)
        self._own_baseline = baseline_metrics is None
        self._steps: tuple[float, int] | None = None
        self.current_loss: float | None = None
        """The newest loss, where there is no training monitor."""
        self.history: deque[Metrics] = deque(maxlen=HISTORY)
        """The newest samples."""
        self._storage = storage if storage is None or callable(storage) else JsonLines(storage, FILE)
        self._warmup = max(0, int(warmup_samples))
        self._now, self._stream = now, stream
        self._resources = resources or Resources()
        self._values: Mapping[str, float] = {}
        self._printed = ""
        super().__init__(
            MachineThread("real-time", 30.0, make_machine, on_sample=self._add, on_end=self._close, report=self._report)
        )

    @property
    def monitoring_thread(self) -> threading.Thread | None:
        """The thread of the loop; None while it does not run."""
        return self._thread.thread

    @property
    def errors(self) -> int:
        """Exceptions in the loop so far."""
        return self._thread.errors

    def start_monitoring(self, interval: float = 30) -> None:
        """Start the loop in a daemon thread, with a sample every `interval` seconds. A second start is harmless."""
        if not self.is_monitoring:
            self._thread.interval = max(0.001, interval)
            self._thread.start()

    def _add(self, sample: MachineSample) -> None:
        """Check, send and keep a sample of the machine."""
        self._values = sample.values
        metrics = self._get_current_metrics()
        speed = self._get_training_speed()
        if speed is not None:
            metrics["training_speed"] = speed
        try:
            self._check(metrics)
        finally:
            self._log_metrics(metrics)

    def _get_current_metrics(self) -> Metrics:
        """Return one sample: `loss`, `gpu_memory`, `cpu_percent` and `timestamp`; None where a value is unknown."""
        return {
            "loss": self._get_current_loss(),
            "gpu_memory": self._get_gpu_memory(),
            "cpu_percent": self._get_cpu_usage(),
            "timestamp": self._now(),
        }

    def _get_current_loss(self) -> float | None:
        """Return the newest loss of the training monitor, or the one that was set."""
        monitor = self.training_monitor
        if monitor is not None and monitor.metrics["loss"]:
            return float(monitor.metrics["loss"][-1])
        return self.current_loss

    def _get_gpu_memory(self) -> dict[str, dict[str, float]]:
        """Return MiB by `gpu_<i>`: used and total of the device, and torch's allocator; {} without a GPU."""
        by_name = allocator_memory()
        for index in gpu_indices(self._values):
            for name in ("memory_used", "memory_total"):
                size = self._values.get(f"gpu/{index}/{name}_bytes")
                if size is not None:
                    by_name.setdefault(f"gpu_{index}", {})[name] = size / MIB
        return by_name

    def _get_cpu_usage(self) -> float | None:
        """Return the CPU usage since the previous sample, in percent; None if it is unavailable."""
        percent = float(self._resources.read()["cpu_percent"])
        return None if math.isnan(percent) else percent

    def _get_training_speed(self) -> float | None:
        """Return the steps per second since the previous sample; None before there are two samples."""
        monitor = self.training_monitor
        if monitor is None:
            return None
        seen, self._steps = self._steps, (self._now(), monitor.metrics["step"].recorded)
        if seen is None or self._steps[0] <= seen[0]:
            return None
        return (self._steps[1] - seen[1]) / (self._steps[0] - seen[0])

    def _check(self, metrics: Metrics) -> None:
        """Set the baseline if there is none; compare the sample with it and send the alerts."""
        if self._warmup:
            self._warmup -= 1
            return
        if self.baseline_metrics is None:
            self.baseline_metrics = metrics
        if self._own_baseline and "training_speed" in metrics:  # the first sample cannot have one
            self.baseline_metrics.setdefault("training_speed", metrics["training_speed"])
        check = getattr(self.alerting_system, "check_alerts", None)
        send = getattr(self.alerting_system, "send_alert", None)
        for alert in check(metrics, self.baseline_metrics) if check is not None else ():
            if send is not None:
                self._thread.guarded(partial(send, alert))

    def _log_metrics(self, metrics: Metrics) -> None:
        """Keep a sample in memory and in the storage."""
        self.history.append(metrics)
        if isinstance(self._storage, JsonLines):
            self._storage.write([metrics])
        elif self._storage is not None:
            self._storage(metrics)

    def _close(self) -> None:
        if isinstance(self._storage, JsonLines):
            self._storage.close()

    def _report(self, error: Exception) -> None:
        text = f"Monitoring error: {error}"
        if text != self._printed:
            self._printed = text
            print(text, file=self._stream or sys.stderr, flush=True)
