"""Sample one GPU in a thread; keep the newest figures, and write all of them to JSON-lines files."""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING, Any

from stepscope.core.clock import Clock
from stepscope.core.errors import StepscopeError
from stepscope.exporters.files.jsonl_log import JsonLines, Rotation
from stepscope.exporters.files.monitor_rows import GPU_FIELDS, gpu_indices, gpu_row, system_row
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.metrics.statistics import Statistics
from stepscope.trackers.monitor.system_monitor import SHORTEST, MachineMonitor
from stepscope.watcher.machine import MachineThread, whole_machine

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from stepscope.watcher.machine import LocalMachine, MachineSample

HISTORY = 300
"""Samples kept: five minutes at one per second."""
PATIENCE = 5
"""Samples after which a GPU without a value is reported as missing: the driver may answer late."""
MEASURED = tuple(GPU_FIELDS)
HOST = ("cpu_usage_percent", "memory_usage_percent")


class GPUMonitor(MachineMonitor):
    """Sample one GPU and the host every `sample_interval` seconds, in a daemon thread.

    Without a GPU, driver or binding it reports the reason once and still samples the host; nothing raises. The driver
    is queried in a separate process: a driver that hangs blocks neither this thread nor the training.
    """

    def __init__(
        self,
        gpu_index: int = 0,
        sample_interval: float = 1.0,
        history_size: int = HISTORY,
        log_dir: str | os.PathLike[str] | None = "gpu_logs",
        *,
        rotation: Rotation | None = None,
        make_machine: Callable[[float], LocalMachine] = whole_machine,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; nothing starts and nothing is written.

        `gpu_index` is the driver's number of the GPU. The interval is at least 0.1 s. `gpu_metrics_*.jsonl` and
        `system_metrics_*.jsonl` go to `log_dir`; None turns them off.
        """
        self.gpu_index = int(gpu_index)
        self.log_dir = log_dir
        self.rotation = rotation or Rotation()
        self.history_size = max(1, int(history_size))
        self.notices = Complaints()
        self._clock = clock or Clock()
        self._history: deque[dict[str, Any]] = deque(maxlen=self.history_size)
        self._statistics: Mapping[str, Statistics] = {name: Statistics() for name in (*MEASURED, *HOST)}
        self._span: tuple[int, int] | None = None
        self._files: list[JsonLines] = []
        self._indices: list[int] = []
        self.sample_interval = max(SHORTEST, float(sample_interval))
        thread = MachineThread(
            f"gpu-{self.gpu_index}", self.sample_interval, make_machine, on_sample=self._add, on_end=self._close
        )
        thread.notices = self.notices
        super().__init__(thread)

    @property
    def is_available(self) -> bool:
        """Whether the GPU has answered so far."""
        return any(self._statistics[name].count for name in MEASURED)

    def get_current_metrics(self) -> dict[str, Any]:
        """Return the newest sample as a row of `gpu_metrics_*.jsonl`; {} if the GPU has not answered for 10 s."""
        latest = self._thread.latest
        known = latest is not None and self.gpu_index in gpu_indices(latest.values)
        return dict(self._history[-1]) if known and self._history else {}

    def get_history(self) -> list[dict[str, Any]]:
        """Return the newest samples of the GPU, at most `history_size`, oldest first."""
        return list(self._history)

    def get_summary(self) -> dict[str, Any]:
        """Return mean, min and max of every figure over all samples; without a GPU, the reason."""
        span = self._span
        summary: dict[str, Any] = {
            "gpu_index": self.gpu_index,
            "available": self.is_available,
            "samples": self._thread.samples,
            "duration_seconds": 0.0 if span is None else (span[1] - span[0]) / 1e9,
        }
        for name, figures in self._statistics.items():
            if figures.count:
                summary[name] = {"mean": figures.mean, "min": figures.minimum, "max": figures.maximum}
        if not self.is_available:
            summary["reason"] = self._reason()
        return summary

    def _add(self, moment: MachineSample) -> None:
        row = gpu_row(moment.new, self.gpu_index, moment.wall_ns)
        host = system_row(moment.new, moment.wall_ns)
        self._indices = gpu_indices(moment.values)
        self._span = (self._span[0] if self._span else moment.monotonic_ns, moment.monotonic_ns)
        statistics = {name: copy.copy(figures) for name, figures in self._statistics.items()}
        for name, figures in statistics.items():
            value = (row or {}).get(name) if name in MEASURED else host[name]
            if isinstance(value, (int, float)):
                figures.add(float(value))
        self._statistics = statistics  # replaced as a whole: a reader never sees half a sample
        if row is not None:
            self._history.append(row)
        elif self.gpu_index not in self._indices and (self._gpu_reasons() or self._thread.samples >= PATIENCE):
            self.notices.say("gpu", f"cannot sample GPU {self.gpu_index}: {self._reason()}; the training goes on")
        self._write([] if row is None else [row], host)

    def _gpu_reasons(self) -> list[str]:
        absent = self._thread.absent
        return [why for what, why in absent.items() if what in {"gpu", "nvidia"} or what.startswith("gpu/*")]

    def _reason(self) -> str:
        if reasons := self._gpu_reasons():
            return reasons[0]
        if self._indices:
            return f"this machine has GPUs {', '.join(map(str, self._indices))}; give one of them as gpu_index"
        return "no source has reported it yet; `stepscope doctor` lists the sources"

    def _write(self, rows: list[dict[str, object]], host: dict[str, object]) -> None:
        if self.log_dir is None:
            return
        if not self._files:
            stems = ("gpu_metrics", "system_metrics")
            self._files = [JsonLines(self.log_dir, stem, self.rotation, now=self._clock.wall_ns) for stem in stems]
        for file, lines in zip(self._files, (rows, [host]), strict=True):
            try:
                file.write(lines)
            except StepscopeError as error:
                self.notices.say(f"file {file.stem}", str(error))

    def _close(self) -> None:
        files, self._files = self._files, []
        for file in files:
            file.close()
