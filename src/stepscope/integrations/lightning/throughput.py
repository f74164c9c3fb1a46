"""Throughput of a Lightning training, per epoch: samples and batches per second, waiting for data, memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.vocabulary import GIB, MIB
from stepscope.integrations.lightning.callback import MonitorCallback, configured
from stepscope.integrations.numerics.memory import dataset_bytes, peak_on_device, peak_resident

if TYPE_CHECKING:
    from stepscope.integrations.lightning.recording import FitRecording

DEFINITIONS = {
    "samples_per_second": "samples of this rank / seconds from the start of the epoch to the end of its last batch, "
    "without evaluation and checkpoints",
    "batches_per_second": "batches / the same seconds",
    "batch_load_time_ms": "time that the loop waited for each batch, with or without workers",
    "batch_transform_time_ms": "time of the dataset's transforms for each batch, in any process, plus the hooks "
    "on_before_batch_transfer and on_after_batch_transfer",
    "memory_dataset_mb": "MiB of arrays, tensors and texts in the training dataset of this process",
    "memory_cache_mb": "MiB of those in attributes with 'cache' in their name",
    "memory_peak_mb": "MiB: peak of the allocator on a GPU, otherwise peak resident memory of the process",
    "throughput_efficiency": "throughput / throughput without waiting for data: 1 - time waiting for data / time",
}
"""Definition of each value; recorded in the run as an event."""


class ThroughputMonitorCallback(MonitorCallback):
    """Measure throughput per epoch, and record every step with its phases.

    Samples are counted in the batches that this process has trained on: gradient accumulation, batches of any size, a
    short last batch and a resume do not distort the figures.
    """

    @configured("throughput_monitor")
    def __init__(
        self,
        enabled: bool = True,  # noqa: FBT001, FBT002 - compatible spelling
        log_interval: int = 1,
        track_memory: bool = True,  # noqa: FBT001, FBT002
        track_timing: bool = True,  # noqa: FBT001, FBT002
        *,
        project: str | None = None,
    ) -> None:
        """Prepare; nothing starts before the fit.

        Args:
            enabled: false turns the callback off.
            log_interval: epochs between reports.
            track_memory: measure memory of dataset, cache and process (`memory_…`).
            track_timing: measure waiting for batches, and transforms (`batch_…_time_ms`).
            project: project of a new run, if there is no current run.
        """
        super().__init__(enabled=enabled, project=project)
        self.log_interval = max(1, int(log_interval))
        self.track_memory, self.track_timing = bool(track_memory), bool(track_timing)
        self.metrics: dict[str, float] = {}
        """The figures of the last reported epoch."""
        self._dataset: tuple[int | None, int | None] | None = None

    def fit_begins(self, trainer: Any, recording: FitRecording) -> None:
        """Record the definitions of the figures."""
        ranks = {"rank": trainer.global_rank, "world_size": trainer.world_size}
        recording.run.own_event("definitions", source="ThroughputMonitorCallback", **DEFINITIONS, **ranks)

    def epoch_ended(self, trainer: Any, recording: FitRecording) -> None:
        """Report the epoch, if it is due."""
        done = trainer.current_epoch + 1
        if done % self.log_interval and done != trainer.max_epochs:
            return
        self.metrics = self.figures(trainer, recording)
        if not self.metrics:
            return
        recording.run.log(self.metrics)
        for logger in trainer.loggers:
            if not hasattr(logger, "stepscope_run"):  # ours has them already
                logger.log_metrics(dict(self.metrics), step=trainer.global_step)
        for line in self.lines(trainer):
            self.say(trainer, line)

    def figures(self, trainer: Any, recording: FitRecording) -> dict[str, float]:
        """Return the figures of the epoch so far; unknown ones are left out."""
        epoch, found = recording.epoch, {}
        if epoch.batches and epoch.seconds > 0:
            found["batches_per_second"] = epoch.batches / epoch.seconds
            rate = epoch.rate("samples")
            if rate is not None:
                found["samples_per_second"] = rate
            found["throughput_efficiency"] = max(0.0, 1.0 - recording.actions.waited_seconds / epoch.seconds)
        if self.track_timing:
            for name, phase in (("batch_load_time_ms", "data"), ("batch_transform_time_ms", "transform")):
                durations = recording.actions.waits[phase].milliseconds()
                found.update({f"{name}/{part}": value for part, value in durations.items()})
        if self.track_memory:
            found.update(self._memory(trainer))
        return found

    def _memory(self, trainer: Any) -> dict[str, float]:
        if self._dataset is None:  # once: it is a walk through the dataset's objects
            dataset = getattr(trainer.train_dataloader, "dataset", None)
            self._dataset = (None, None) if dataset is None else dataset_bytes(dataset)
        peak = peak_on_device(trainer.strategy.root_device)
        sizes = {
            "memory_dataset_mb": self._dataset[0],
            "memory_cache_mb": self._dataset[1],
            "memory_peak_mb": peak_resident() if peak is None else peak,
        }
        return {name: size / MIB for name, size in sizes.items() if size is not None}

    def lines(self, trainer: Any) -> list[str]:
        """Return the printed lines of the last epoch; GB means 2**30 bytes."""
        figures = self.metrics
        rate, peak = figures.get("samples_per_second"), figures.get("memory_peak_mb")
        parts = ["samples/sec: unknown" if rate is None else f"samples/sec: {rate:.1f}"]
        if trainer.world_size > 1:
            parts[0] += f" on rank {trainer.global_rank} of {trainer.world_size}"
        if peak is not None:
            parts.append(f"memory_peak: {peak * MIB / GIB:.1f}GB")
        lines = [f"ThroughputMonitor: Epoch {trainer.current_epoch} - {', '.join(parts)}"]
        times = {what: figures.get(f"batch_{what}_time_ms/p95") for what in ("load", "transform")}
        timing = [f"{what}: {value:.0f}ms (p95)" for what, value in times.items() if value is not None]
        if timing:
            lines.append(f"ThroughputMonitor: Batch timing - {', '.join(timing)}")
        return lines
