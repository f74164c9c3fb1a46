"""Monitor a training from inside its loop: figures in process, everything else in a run on disk."""

from __future__ import annotations

import math
import os
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stepscope.core.clock import Clock
from stepscope.core.config import load, load_or_default
from stepscope.core.errors import UsageError
from stepscope.core.identity import Distributed, place_of
from stepscope.core.names import clean
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.alerting.alert_system import AlertSystem
from stepscope.trackers.metrics.recent_values import RecentValues
from stepscope.trackers.metrics.scalar import DeviceScalar, scalar_of
from stepscope.trackers.monitor.resources import StepMemory
from stepscope.trackers.monitor.system_monitor import SystemAttachment
from stepscope.trackers.monitor.training_metrics import CustomMetrics, TrainingMetrics
from stepscope.trackers.profiling.gradient_watch import GradientNorms, GradientWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from stepscope.trackers.logged_run import MonitoredRun

ConfigSource: TypeAlias = Mapping[str, object] | str | os.PathLike[str]
"""Settings in any accepted spelling, or the path of a YAML file with them."""
_KEPT = ("step", "loss", "accuracy", "learning_rate", "grad_norm", "batch_time", "timestamp")
FLUSH_SECONDS = 0.2
"""How long the end waits for the alert rules of the last steps."""
MAX_DASHBOARD_ROWS = 10_000
MAX_NAMES = 1000
"""Names whose values are kept in process; further ones go to the run only."""


@dataclass(frozen=True)
class MonitorSettings:
    """The settings that were given, checked, by the path of their key."""

    given: Mapping[str, object] = field(default_factory=dict)
    """Only the settings that were given: other sources of `init` decide the rest."""
    remarks: tuple[str, ...] = ()
    """Remarks about them for people; a run that starts with them prints these itself."""

    def leaves_out(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Return whether this rank is not tracked: with `track_rank_0_only` all but rank 0."""
        first_only = self.given.get("recorder.track_rank_0_only") or self.given.get("recorder.distributed") is False
        return bool(first_only) and place_of(environ, Distributed.current()).rank != 0

    def start_run(self) -> MonitoredRun:
        """Begin a run with these settings; it becomes the current one of the process."""
        from stepscope.session.opening import init

        return init(**dict[str, Any](self.given))


def read_settings(config: ConfigSource | None, notices: Complaints) -> MonitorSettings:
    """Check a configuration and return its settings; errors are reported once, and the rest is used."""
    if config is None:
        return MonitorSettings()
    settings = config if isinstance(config, Mapping) else {}
    files = [] if isinstance(config, Mapping) else [Path(config)]
    reported = 0
    try:
        loaded = load(files, settings)
    except UsageError as error:
        notices.say("configuration", str(error))
        loaded, reported = load_or_default(files, settings), 1
    given = {path: loaded.get(path) for path, source in loaded.sources.items() if not source.startswith("implied by ")}
    return MonitorSettings(given, loaded.notices[: len(loaded.notices) - reported])


class TrainingMonitor:
    """Record the steps of a training, in process and in a run on disk.

    The constructor starts and writes nothing: the run begins with the first record or with `start_monitoring`. No
    method raises into the loop. Only reading figures (`get_training_stats`, `metrics`) waits for a device.
    """

    def __init__(
        self,
        config: ConfigSource | None = None,
        *,
        custom_metrics: Mapping[str, Callable[..., object]] | None = None,
        run: MonitoredRun | None = None,
        start_run: Callable[[MonitorSettings], MonitoredRun] = MonitorSettings.start_run,
        clock: Clock | None = None,
    ) -> None:
        """Set up a monitor with settings, a dictionary or the path of a YAML file.

        The functions in `custom_metrics` are called at every step, with its TrainingMetrics or without arguments. The
        monitor starts and finishes its own run, unless `run` is given.
        """
        self.notices = Complaints()
        self._metrics: defaultdict[str, RecentValues] = defaultdict(RecentValues)
        self._clock = clock or Clock()
        self.start_time = self._clock.wall_ns() / 1e9
        self._settings = read_settings(config, self.notices)
        self.tensorboard_dir = str(self._settings.given.get("exporters.tensorboard.dir") or "") or None
        """Parent folder of the run's TensorBoard files; None if there are none."""
        if run is not None:
            for remark in self._settings.remarks:
                self.notices.say(remark, remark)
        self._run: MonitoredRun | None = None
        self._given, self._start_run, self._stopped = run, start_run, False
        self._starting = threading.RLock()
        self._next_step = 0
        self._last_end: int | None = None
        self.dashboard: Any = None
        """A dashboard such as `stepscope.web.MonitoringDashboard`, whose `metrics_data` gets a row per step."""
        self._memory = StepMemory(self._clock.monotonic_ns)
        self._custom = CustomMetrics(custom_metrics)
        self._system = SystemAttachment(self.notices)
        is_on = self._settings.given.get("alerting.enabled") is not False
        self.alert_system: Any = AlertSystem(enabled=is_on, notices=self.notices, record=self._alert)
        """Evaluates the user's rules (`add_alert_rule`) on every step; may be replaced."""
        wanted = self._settings.given.get("recorder.watch.gradients") is not False
        layers = self._settings.given.get("recorder.watch.layers") or ()
        self._gradients = GradientWatch(self.notices, layers=layers) if wanted else None  # type: ignore[arg-type]

    @property
    def system_monitor(self) -> Any:
        """A sampler of the machine, such as a SystemMonitor, started and stopped with the monitoring; None without.

        `metrics` has one value for each of its samples.
        """
        return self._system.part

    @system_monitor.setter
    def system_monitor(self, part: Any) -> None:
        self._system.put(part, start=self._run is not None)

    @property
    def metrics(self) -> defaultdict[str, RecentValues]:
        """The newest 10 000 values of each metric, as lists. Waits for values that are still on a device."""
        for series in list(self._metrics.values()):
            series.settle()
        return self._metrics

    @property
    def start_time(self) -> float:
        """Seconds since 1970 UTC from which `training_time` counts; may be set again."""
        return self._start_time

    @start_time.setter
    def start_time(self, seconds: float) -> None:
        # Kept on the monotonic clock too, so that a jump of the wall clock does not change a duration.
        self._start_time = seconds
        self._start_tick = self._clock.monotonic_ns() / 1e9 - (self._clock.wall_ns() / 1e9 - seconds)

    @property
    def run(self) -> MonitoredRun | None:
        """The current run; None before it begins and after it is finished."""
        return self._run

    @property
    def non_finite_losses(self) -> int:
        """How many losses were NaN or infinite; they are in no average, minimum or maximum."""
        return self.metrics["loss"].statistics.nonfinite

    def start_monitoring(self) -> None:
        """Begin the run, if it has not begun. After `stop_monitoring` a new one begins."""
        self._stopped = False
        with self._starting:
            if self._run is None:
                self._run = self._start_run(self._settings) if self._given is None else self._given
                self._system.start()

    def stop_monitoring(self) -> None:
        """Finish the run, if it is the monitor's own. May be called again."""
        self._stop(None)

    def _stop(self, error: BaseException | None) -> None:
        flush = getattr(self.alert_system, "flush", None)
        if flush is not None:
            flush(FLUSH_SECONDS)
        run, self._run, self._stopped = self._run, None, True
        self._system.stop()
        if run is not None and run is not self._given:
            run.finish(error)

    def __enter__(self) -> Self:
        self.start_monitoring()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Finish the run, as failed if there is an exception, which is not caught."""
        self._stop(error)

    def record_metrics(self, step: int, loss: Any, learning_rate: Any, batch_size: Any) -> None:
        """Record one step. Each value is a number or a one-element tensor; a device tensor is not waited for."""
        custom: dict[str, object] = {"batch_size": batch_size}
        self._record(TrainingMetrics(step=step, loss=loss, learning_rate=learning_rate, custom=custom))

    def log_training_step(
        self,
        model: object = None,
        optimizer: Any = None,
        loss: Any = None,
        accuracy: Any = None,
        learning_rate: Any = None,
        custom_metrics: Mapping[str, object] | None = None,
        step: int | None = None,
    ) -> TrainingMetrics:
        """Record the given values of one step and the time since the previous step; return the step.

        Args:
            model: its gradient norm is recorded as `grad_norm`, after clipping as `grad_norm_clipped`, and that of
                each layer that `track_layers` names as `grad_norm/<layer>`. If the gradients are gone, the norm is
                absent, and the reason is reported once.
            optimizer: from the second step on the norm is measured right before it steps: then `zero_grad` may come
                before this call.
            loss: a number or a one-element tensor, as all values.
            accuracy: fraction, 0 to 1.
            learning_rate: by default that of the optimizer's first group.
            custom_metrics: further values by name.
            step: index; without it the monitor counts up from 0. A given index does not change that counter.
        """
        if step is None:
            step, self._next_step = self._next_step, self._next_step + 1
        now = self._clock.monotonic_ns()
        batch_time = None if self._last_end is None else (now - self._last_end) / 1e9
        self._last_end = now
        norms = GradientNorms() if self._gradients is None else self._gradients.take(model, optimizer)
        layers = {f"grad_norm/{name}": norm for name, norm in norms.layers.items()}
        metrics = TrainingMetrics(
            step=step,
            loss=loss,
            accuracy=accuracy,
            learning_rate=_learning_rate(optimizer) if learning_rate is None else learning_rate,
            grad_norm=norms.norm,
            grad_norm_clipped=norms.clipped,
            batch_time=batch_time,
            custom={**layers, **self._mapping(custom_metrics)},
        )
        return self._record(metrics)

    def _mapping(self, values: object) -> dict[str, object]:
        """Copy custom metrics; anything but a mapping is refused."""
        if isinstance(values, Mapping):
            return dict(values)
        if values is not None:
            cause = f"a {type(values).__name__} is not a dictionary; give values by name"
            self.notices.say("custom", f"cannot take custom_metrics: {cause}")
        return {}

    def get_training_stats(self) -> dict[str, float]:
        """Return current, average, min and max loss, steps, and seconds since `start_time`; {} without a loss.

        Average, minimum and maximum are over all finite losses (NaN if there is none); `non_finite_losses` counts the
        others. Waits for losses that are still on a device.
        """
        if not self.metrics["loss"]:
            return {}
        losses = self.metrics["loss"].statistics
        return {
            "current_loss": self.metrics["loss"][-1],
            "avg_loss": losses.mean if losses.count else math.nan,
            "min_loss": losses.minimum if losses.count else math.nan,
            "max_loss": losses.maximum if losses.count else math.nan,
            "total_steps": self.metrics["step"].recorded,
            "training_time": self._clock.monotonic_ns() / 1e9 - self._start_tick,
        }

    def _record(self, metrics: TrainingMetrics) -> TrainingMetrics:
        """Keep a step in process and log it to the run."""
        metrics.timestamp = self._clock.wall_ns() / 1e9
        self._custom.add_to(metrics)
        kept = _snapshot(metrics)
        if self._stopped:
            cause = "monitoring was stopped; call start_monitoring() for a new run"
            self.notices.say("stopped", f"cannot record into the run: {cause}")
        else:
            self.start_monitoring()
        if self._run is not None:
            # At once: a logged row survives the death of this process, a buffered one would not.
            self._run.log(metrics.to_run(), step=metrics.step)
        for name, value in {**self._system.fresh(), **kept}.items():
            self._keep(name, value)
        self._memory.fill(metrics)  # for rules and callers: in the run are the watcher's own samples
        _show_on(self.dashboard, metrics)
        check = getattr(self.alert_system, "check", None)
        if check is not None and not self._settings.leaves_out():
            check(metrics)
        return metrics

    def _alert(self, event: dict[str, Any]) -> None:
        """Record an alert event; in the thread of the alert system."""
        record = getattr(self._run, "own_event", None)
        if record is not None:
            fields = {name: value for name, value in event.items() if name not in {"kind", "time", "rank", "step"}}
            record("alert", step=event.get("step"), **fields)

    def _keep(self, name: str, value: float | DeviceScalar) -> None:
        """Keep a number in process."""
        label = name if name in self._metrics else clean(name)[0]
        if label in self._metrics or (label and len(self._metrics) < MAX_NAMES):
            self._metrics[label].push(value)
        else:
            cause = f"{MAX_NAMES} names are kept; read further ones from the run"
            self.notices.say("names", f"cannot keep metric {label!r} in process: {cause}")


def _learning_rate(optimizer: Any) -> Any:
    """Return the learning rate of the optimizer's first group; None if it has none."""
    try:
        return optimizer.param_groups[0]["lr"]
    except (AttributeError, KeyError, IndexError, TypeError):
        return None  # another kind of optimizer


def _show_on(dashboard: Any, metrics: TrainingMetrics) -> None:
    rows = getattr(dashboard, "metrics_data", None)
    if isinstance(rows, list):
        loss = metrics.loss if isinstance(metrics.loss, (int, float)) else None  # a device is not waited for
        row = {"timestamp": metrics.timestamp, "step": metrics.step, "loss": loss, "gpu_memory": metrics.gpu_memory_mb}
        rows.append(row)
        del rows[:-MAX_DASHBOARD_ROWS]


def _snapshot(metrics: TrainingMetrics) -> dict[str, float | DeviceScalar]:
    """Replace each tensor by its number, or by a copy on its device; return the numbers."""
    own = {name: value for name in _KEPT if (value := getattr(metrics, name)) is not None}
    taken = {name: scalar_of(value) for name, value in {**metrics.custom, **own}.items() if value is not None}
    numbers = {name: number for name, number in taken.items() if number is not None}
    for name, number in numbers.items():
        plain = number.tensor if isinstance(number, DeviceScalar) else number
        if name in _KEPT:
            setattr(metrics, name, plain)
        else:
            metrics.custom[name] = plain
    return numbers
