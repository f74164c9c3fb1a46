"""TrainingMonitorCallback: steps of a training next to the samples of its GPU."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.core.clock import Clock
from stepscope.core.vocabulary import canonical
from stepscope.exporters.files.jsonl_log import JsonLines
from stepscope.exporters.files.monitor_rows import training_row
from stepscope.recorder.device import DeviceError, DeviceValues, on_device
from stepscope.session.current import CURRENT
from stepscope.trackers.metrics.scalar import DeviceScalar, scalar_of
from stepscope.trackers.monitor.resources import allocator_memory
from stepscope.trackers.monitor.training_metrics import TrainingMetrics
from stepscope.trackers.work_queue import LineQueue

if TYPE_CHECKING:
    from stepscope.recorder.device import Arriving
    from stepscope.trackers.logged_run import LoggedRun
    from stepscope.trackers.monitor.gpu_monitor import GPUMonitor

FIELDS = {"lr": "learning_rate", "grad_norm": "gradient_norm", "throughput": "throughput_samples_per_sec"}
"""Arguments whose field in the file is called otherwise."""


class TrainingMonitorCallback:
    """Write the steps of a training to `training_metrics_*.jsonl`, and sample its GPU meanwhile.

    The steps are also recorded in a run: the one that is given, or the current one of the process if there is one. No
    method raises into the training or waits for a device or a disk: rows are written by a thread, as they come.
    """

    def __init__(self, gpu_monitor: GPUMonitor, *, run: LoggedRun | None = None, clock: Clock | None = None) -> None:
        """Prepare; nothing starts.

        The GPU monitor is started and stopped with the training, unless it runs already; the file goes to its folder.
        """
        self.gpu_monitor = gpu_monitor
        self.steps = 0
        """Steps that have ended."""
        self.step_seconds: float | None = None
        """How long the last step took, from `on_step_begin` to `on_step_end`."""
        self._given, self._run = run, run
        self._clock = clock or Clock()
        self._devices = DeviceValues()
        self._history: deque[dict[str, Any]] = deque(maxlen=gpu_monitor.history_size)
        self._begun: int | None = None
        self._started_monitor = False
        self._lines: LineQueue | None = None

    def on_train_begin(self) -> None:
        """Start the GPU monitor, if it does not run, and look for a run to record into."""
        if not self.gpu_monitor.is_monitoring:
            self.gpu_monitor.start_monitoring()
            self._started_monitor = True
        if self._given is None:
            self._run = CURRENT.run if CURRENT.run.recording else None

    def on_step_begin(self) -> None:
        """Start the clock of the step."""
        self._begun = self._clock.monotonic_ns()

    def on_step_end(
        self,
        step: int,
        epoch: float | None = None,
        loss: Any = None,
        lr: Any = None,
        grad_norm: Any = None,
        throughput: Any = None,
        **more: Any,
    ) -> None:
        """Record one step. Each value is a number or a one-element tensor; `throughput` is in samples per second.

        FIELDS has the names in the file that differ. Further values are written under their own names; a field of the
        file may also be given by its name.
        """
        self.step_seconds = None
        if self._begun is not None:
            self.step_seconds, self._begun = (self._clock.monotonic_ns() - self._begun) / 1e9, None
        given = {"epoch": epoch, "loss": loss, "lr": lr, "grad_norm": grad_norm, "throughput": throughput}
        named = {FIELDS.get(name, name): value for name, value in given.items() if value is not None}
        values = {**more, **named}
        self.steps += 1
        self._record(step, values)
        self._keep(step, values)

    def on_train_end(self) -> None:
        """Write the queued rows, and stop the GPU monitor if the callback has started it."""
        if self._lines is not None:
            self._lines.close()
        if self._started_monitor:
            self._started_monitor = False
            self.gpu_monitor.stop_monitoring()

    def get_history(self) -> list[dict[str, Any]]:
        """Return the newest steps as rows of the file, oldest first; values that are still on a device are None."""
        return list(self._history)

    def get_summary(self) -> dict[str, Any]:
        """Return the steps so far and the summary of the GPU."""
        last = self._history[-1] if self._history else {}
        return {"steps": self.steps, "last": last, "gpu": self.gpu_monitor.get_summary()}

    def _record(self, step: int, values: dict[str, Any]) -> None:
        if self._run is None:
            return
        known = {canonical(name) if name in FIELDS.values() else name: value for name, value in values.items()}
        own = {name: known.pop(name, None) for name in ("epoch", "loss", "learning_rate", "grad_norm")}
        metrics = TrainingMetrics(step=step, **own, batch_time=self.step_seconds, custom=known)
        self._run.log(metrics.to_run(), step=step)

    def _keep(self, step: int, values: dict[str, Any]) -> None:
        """Keep the step in memory and hand it to the file."""
        row: dict[str, object] = {"step": step}
        later: dict[str, Arriving | DeviceScalar] = {}
        for name, value in values.items():
            number = self._taken(name, value)
            if number is None or isinstance(number, (int, float)):
                row[name] = number
            else:
                row[name], later[name] = None, number
        memory = allocator_memory().get(f"gpu_{self.gpu_monitor.gpu_index}", {})
        row.setdefault("memory_allocated_mb", memory.get("memory_allocated"))
        row.setdefault("memory_reserved_mb", memory.get("memory_reserved"))
        complete = training_row(row, self._clock.wall_ns())
        self._history.append(complete)
        monitor = self.gpu_monitor
        if monitor.log_dir is not None:
            if self._lines is None:
                file = JsonLines(monitor.log_dir, "training_metrics", monitor.rotation, now=self._clock.wall_ns)
                self._lines = LineQueue(file, partial(monitor.notices.say, "training file"))
            self._lines.put(complete, later)

    def _taken(self, name: str, value: object) -> float | Arriving | DeviceScalar | None:
        """Return a number, or one that is still on a device; None for an invalid value, which is reported once."""
        if value is None:
            return None
        try:
            number = self._devices.take(value) if on_device(value) else scalar_of(value)
        except DeviceError as error:
            self.gpu_monitor.notices.say("device value", f"cannot write {name} to the file: {error}")
            return None
        if number is None:
            cause = f"a {type(value).__name__} is not one number; give a number or a one-element tensor"
            self.gpu_monitor.notices.say(f"value {name}", f"cannot write {name} to the file: {cause}")
        return number
