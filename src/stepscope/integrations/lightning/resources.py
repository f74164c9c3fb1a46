"""The machine around a Lightning training: lines on the console, and a CSV file for each epoch."""

from __future__ import annotations

import os
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import UsageError, in_words
from stepscope.core.kinds import describe, parse_fraction
from stepscope.core.vocabulary import GIB
from stepscope.integrations.lightning.callback import MonitorCallback, configured
from stepscope.integrations.lightning.resource_alerts import BATCHES, ResourceAlerts, gpu_numbers
from stepscope.integrations.lightning.resource_csv import ResourceTable
from stepscope.samplers.process import ProcessSampler
from stepscope.watcher.machine import LocalMachine, MachineThread, local_samplers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.integrations.lightning.recording import FitRecording
    from stepscope.samplers.sampler import Sampler
    from stepscope.watcher.machine import MachineSample

SECONDS = 1.0
"""Time between two samples of the machine, as in the watcher."""
STOP_SECONDS = 2.0
"""Maximum wait at the end of the fit for the thread, which may be writing."""
GPU_SOURCES = {"nvidia", "amd", "other_gpus"}
IO_SOURCES = {"disk", "network"}


class ResourceMonitorCallback(MonitorCallback):
    """Watch GPUs, CPUs, memory and disks during a training.

    It samples the same sources as the watcher, once a second in a thread, and prints an alert when a value has been
    beyond its threshold for `alert_batches`. Its alert options are recorded as an event: the watcher's rules use these
    thresholds instead of their own.
    """

    @configured("resource_monitor")
    def __init__(  # noqa: PLR0913 - compatible options
        self,
        enabled: bool = True,  # noqa: FBT001, FBT002 - compatible spelling
        log_interval: int = 10,
        gpu_monitoring: bool = True,  # noqa: FBT001, FBT002
        cpu_monitoring: bool = True,  # noqa: FBT001, FBT002
        io_monitoring: bool = True,  # noqa: FBT001, FBT002
        *,
        alert_gpu_underutilization: bool = True,
        alert_memory_pressure: bool = True,
        alert_io_bottleneck: bool = True,
        gpu_util_threshold: float | str = 0.5,
        memory_threshold: float | str = 0.9,
        io_wait_threshold: float | str = 0.3,
        alert_batches: int = BATCHES,
        export_timeseries: bool = True,
        timeseries_path: str | os.PathLike[str] = "resource_logs",
        project: str | None = None,
        make_machine: Callable[[], LocalMachine] | None = None,
    ) -> None:
        """Prepare; nothing starts before the fit.

        Args:
            enabled: false turns the callback off.
            log_interval: batches between reports on the console; a report without a new sample is skipped.
            gpu_monitoring: sample GPUs.
            cpu_monitoring: sample CPUs, memory and this process.
            io_monitoring: sample disks and network.
            alert_gpu_underutilization: alert on a GPU below its threshold.
            alert_memory_pressure: alert on memory above its threshold.
            alert_io_bottleneck: alert on waiting for disks above its threshold.
            gpu_util_threshold: GPU utilization: 0.5, 50 or "50%".
            memory_threshold: share of memory in use.
            io_wait_threshold: share of time spent waiting for disks.
            alert_batches: batches in a row beyond a threshold before an alert.
            export_timeseries: write one CSV file per epoch.
            timeseries_path: folder of the CSV files.
            project: project of a new run, if there is no current run.
            make_machine: returns the machine to look at.
        """
        super().__init__(enabled=enabled, project=project)
        self.log_interval = max(1, int(log_interval))
        wanted = map(bool, (gpu_monitoring, cpu_monitoring, io_monitoring))
        self.gpu_monitoring, self.cpu_monitoring, self.io_monitoring = wanted
        self.alert_options: dict[str, bool | float] = {
            "alert_gpu_underutilization": bool(alert_gpu_underutilization),
            "alert_memory_pressure": bool(alert_memory_pressure),
            "alert_io_bottleneck": bool(alert_io_bottleneck),
            "gpu_util_threshold": _share("gpu_util_threshold", gpu_util_threshold),
            "memory_threshold": _share("memory_threshold", memory_threshold),
            "io_wait_threshold": _share("io_wait_threshold", io_wait_threshold),
        }
        self._alerts = ResourceAlerts(self.alert_options, max(1, int(alert_batches)))
        self.export_timeseries, self.timeseries_path = bool(export_timeseries), Path(timeseries_path)
        self._make = make_machine
        self._samples: MachineThread | None = None
        self._table: ResourceTable | None = None
        self._shown: MachineSample | None = None
        self._late: deque[tuple[ResourceTable, dict[str, float]]] = deque()
        self._step, self._resumed, self._node = 0, False, ""

    def fit_begins(self, trainer: Any, recording: FitRecording) -> None:
        """Start sampling the machine, on one rank of each node."""
        recording.run.own_event("alert_options", source="ResourceMonitorCallback", **self.alert_options)
        wanted = self.gpu_monitoring or self.cpu_monitoring or self.io_monitoring
        if trainer.local_rank != 0 or not wanted or self._samples is not None:
            return
        self._resumed = trainer.ckpt_path is not None
        self._node = f"_node{trainer.node_rank}" if trainer.node_rank else ""
        make = self._make or partial(self._make_machine, trainer.global_rank)
        self._samples = MachineThread(
            "resources",
            SECONDS,
            lambda _interval: make(),
            on_sample=self._add,
            on_end=self._write_late,
            report=self._complain,
            stop_seconds=STOP_SECONDS,
        )
        self._begin_table(trainer.current_epoch)
        self._samples.start()

    def _make_machine(self, rank: int) -> LocalMachine:
        sources = chosen_sources(gpu=self.gpu_monitoring, cpu=self.cpu_monitoring, io=self.io_monitoring, rank=rank)
        return LocalMachine(sources, SECONDS)

    def epoch_begins(self, trainer: Any, _recording: FitRecording) -> None:
        """Begin a file."""
        self._begin_table(trainer.current_epoch)

    def _begin_table(self, epoch: int) -> None:
        path = self.timeseries_path / f"epoch_{epoch}{self._node}.csv"
        if self.export_timeseries and (self._table is None or self._table.path != path):
            self._table = ResourceTable(path, resume=self._resumed)

    def batch_ended(self, trainer: Any, _recording: FitRecording, batch_index: int) -> None:
        """Print alerts, and a report if it is due and there is a new sample."""
        self._step = trainer.global_step
        samples = self._samples
        latest = samples.latest if samples is not None and samples.samples >= 2 else None
        if latest is None:
            return
        for alert in self._alerts.look(latest.values):
            self.say(trainer, f"ResourceMonitor: ALERT - {alert.text}")
            self.say(trainer, f"ResourceMonitor: what to do - {alert.remedy}")
        if (batch_index + 1) % self.log_interval or latest is self._shown:
            return
        self._shown = latest
        for line in resource_lines(latest.values):
            self.say(trainer, line)

    def epoch_ended(self, _trainer: Any, _recording: FitRecording) -> None:
        """Write the newest sample to the file of an epoch that was too short for one of its own."""
        table, latest = self._table, None if self._samples is None else self._samples.latest
        if table is not None and not table.rows and latest is not None:
            self._late.append((table, self._row(latest, latest.values)))

    def fit_ended(self) -> None:
        """Stop sampling."""
        samples, self._samples = self._samples, None
        if samples is not None:
            samples.stop()
        self._table = None

    def _add(self, moment: MachineSample) -> None:
        """Write a sample to the table; in the thread."""
        self._write_late()
        table = self._table
        if table is not None and moment.new:
            table.add(self._row(moment, moment.new))

    def _row(self, moment: MachineSample, values: Mapping[str, float]) -> dict[str, float]:
        return {"time": moment.wall_ns / 1e9, "step": float(self._step), **values}

    def _write_late(self) -> None:
        """Write what the training thread has queued; in the thread."""
        while self._late:
            table, row = self._late.popleft()
            try:
                table.add(row)
            except OSError as error:
                self._complain(error)

    def _complain(self, error: Exception) -> None:
        cause = in_words(error, 300)
        self.notices.say(type(error).__name__, f"cannot keep the machine's samples: {cause}; the training goes on")


def chosen_sources(*, gpu: bool, cpu: bool, io: bool, rank: int = 0) -> list[Sampler]:
    """Return the samplers of GPUs; of CPUs, memory and this process; and of disks and network, as chosen."""
    sources: list[Sampler] = [*local_samplers(), ProcessSampler(lambda: {rank: os.getpid()}, Path("/"), own=0)]
    wanted = {**dict.fromkeys(GPU_SOURCES, gpu), **dict.fromkeys(IO_SOURCES, io)}
    return [source for source in sources if wanted.get(source.name, cpu)]


def _share(name: str, value: object) -> float:
    """Return a threshold as a fraction, parsed like the setting."""
    try:
        return parse_fraction(value)
    except ValueError as error:
        cause = f"{name} is {describe(value)}, {error}"
        raise UsageError("make a ResourceMonitorCallback", cause, f"write {name}=0.9") from None


def resource_lines(values: Mapping[str, float]) -> list[str]:
    """Return the printed line of a sample; unknown values are left out, and GB means 2**30 bytes."""
    lines = [line for gpu in gpu_numbers(values) if (line := _gpu_line(gpu, values))]
    usage, used, total = (values.get(name) for name in ("cpu/usage_ratio", "memory/used_bytes", "memory/total_bytes"))
    parts = [] if usage is None else [f"Usage: {usage * 100:.0f}%"]
    if used is not None and total is not None:
        parts.append(f"Memory: {used / GIB:.1f}/{f'{total / GIB:.1f}'.removesuffix('.0')}GB")
    return [*lines, f"ResourceMonitor: CPU - {', '.join(parts)}"] if parts else lines


def _gpu_line(gpu: int, values: Mapping[str, float]) -> str:
    names = ("utilization_ratio", "memory_used_bytes", "memory_total_bytes", "temperature_celsius")
    busy, used, total, heat = (values.get(f"gpu/{gpu}/{name}") for name in names)
    parts = [] if busy is None else [f"Util: {busy * 100:.0f}%"]
    if used is not None and total is not None:
        parts.append(f"Mem: {used / GIB:.1f}/{total / GIB:.1f}GB")
    if heat is not None:
        parts.append(f"Temp: {heat:.0f}°C")
    return f"ResourceMonitor: GPU {gpu} - {', '.join(parts)}" if parts else ""
