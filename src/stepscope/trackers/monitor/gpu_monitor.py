"""GPUMonitor: one GPU, sampled in a thread, in memory and in JSON-lines files."""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING, Any

from stepscope.core.clock import Clock, SystemClock
from stepscope.core.errors import StepscopeError
from stepscope.exporters.jsonl_files import JsonLines, Rotation
from stepscope.exporters.jsonl_rows import GPU_FIELDS, gpu_indices, gpu_row, system_row
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.metrics.statistics import Statistics
from stepscope.trackers.monitor.machine_watch import MachineWatch, WatchedMachine, whole_machine

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from stepscope.watcher.machine import Machine, Moment

LOG_DIR = "gpu_logs"
"""Folder of the files, below the working directory."""
HISTORY = 300
"""Samples kept: five minutes at one a second."""
PATIENCE = 5
"""Looks after which a GPU that nothing was heard of is said to be missing: the driver may take a moment to answer."""
MEASURED = GPU_FIELDS[2:]
HOST = ("cpu_usage_percent", "memory_usage_percent")


class GPUMonitor(WatchedMachine):
    """Sample one GPU and the host every `sample_interval` seconds, in a daemon thread.

    Without a GPU, driver or binding it says so once, with the reason, and the host is still sampled; nothing raises.
    The driver is asked in a process of its own: one that hangs holds up neither this thread nor the training.
    """

    def __init__(
        self,
        gpu_index: int = 0,
        sample_interval: float = 1.0,
        history_size: int = HISTORY,
        log_dir: str | os.PathLike[str] | None = LOG_DIR,
        *,
        rotation: Rotation | None = None,
        make_machine: Callable[[float], Machine] = whole_machine,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; nothing starts and nothing is written.

        Args:
            gpu_index: which GPU, by the number that the driver gives it.
            sample_interval: seconds, at least 0.1.
            history_size: samples that are kept in memory.
            log_dir: folder for `gpu_metrics_*.jsonl` and `system_metrics_*.jsonl`; None: no files.
            rotation: when a new file begins, and how many stay.
            make_machine: returns the machine to look at.
            clock: both clocks.
        """
        self.gpu_index = int(gpu_index)
        self.log_dir = log_dir
        self.rotation = rotation or Rotation()
        self.history_size = max(1, int(history_size))
        self.notices = Complaints()
        self._clock = clock or SystemClock()
        self._history: deque[dict[str, Any]] = deque(maxlen=self.history_size)
        self._statistics: Mapping[str, Statistics] = {name: Statistics() for name in (*MEASURED, *HOST)}
        self._span: tuple[int, int] | None = None
        self._files: list[JsonLines] = []
        self._indices: list[int] = []
        watch = MachineWatch(
            f"gpu-{self.gpu_index}",
            sample_interval,
            make_machine,
            on_moment=self._take,
            on_end=self._close,
            notices=self.notices,
        )
        super().__init__(watch)
        self.sample_interval = watch.interval

    @property
    def is_available(self) -> bool:
        """Whether the GPU has answered so far."""
        return any(self._statistics[name].count for name in MEASURED)

    def get_current_metrics(self) -> dict[str, Any]:
        """Return the newest sample as a row of `gpu_metrics_*.jsonl`; {} if the GPU has not answered for 10 s."""
        latest, history = self._watch.latest, self.get_history()
        known = latest is not None and self.gpu_index in gpu_indices(latest.values)
        return dict(history[-1]) if known and history else {}

    def get_history(self) -> list[dict[str, Any]]:
        """Return the newest samples of the GPU, at most `history_size`, oldest first."""
        return list(self._history)

    def get_summary(self) -> dict[str, Any]:
        """Return mean, least and largest of every figure over all samples, and why there is none."""
        statistics, span = self._statistics, self._span
        summary: dict[str, Any] = {
            "gpu_index": self.gpu_index,
            "available": self.is_available,
            "samples": self._watch.looks,
            "duration_seconds": 0.0 if span is None else (span[1] - span[0]) / 1e9,
        }
        for name, figures in statistics.items():
            if figures.count:
                summary[name] = {"mean": figures.mean, "min": figures.minimum, "max": figures.maximum}
        if not self.is_available:
            summary["reason"] = self._reason()
        return summary

    def _take(self, moment: Moment) -> None:
        """Take in a moment; in the thread."""
        row = gpu_row(moment.new, self.gpu_index, moment.wall_ns)
        host = system_row(moment.new, moment.wall_ns)
        self._indices = gpu_indices(moment.values)
        self._span = (self._span[0] if self._span else moment.monotonic_ns, moment.monotonic_ns)
        self._count({**{name: host[name] for name in HOST}, **(row or {})})
        if row is not None:
            self._history.append(row)
        elif self.gpu_index not in self._indices:
            self._miss()
        self._write([] if row is None else [row], host)

    def _count(self, row: Mapping[str, object]) -> None:
        statistics = {name: copy.copy(figures) for name, figures in self._statistics.items()}
        for name, figures in statistics.items():
            value = row.get(name)
            if isinstance(value, (int, float)):
                figures.add(float(value))
        self._statistics = statistics  # replaced as a whole: a reader never sees half a sample

    def _miss(self) -> None:
        """Say once that the GPU does not answer."""
        if self._gpu_reasons() or self._watch.looks >= PATIENCE:
            self.notices.say("gpu", f"GPU {self.gpu_index} is not sampled: {self._reason()}; the training goes on")

    def _gpu_reasons(self) -> list[str]:
        return [
            why for what, why in self._watch.absent.items() if what in {"gpu", "nvidia"} or what.startswith("gpu/*")
        ]

    def _reason(self) -> str:
        reasons = self._gpu_reasons()
        if reasons:
            return reasons[0]
        if self._indices:
            return f"this machine has GPUs {', '.join(map(str, self._indices))}; give one of them as gpu_index"
        return "no source has told of it yet; `stepscope doctor` says what was found"

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
