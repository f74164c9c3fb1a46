"""Profile chosen epochs of a Lightning training: Chrome traces, and the slowest operations on the console."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.numbers import format_value
from stepscope.integrations.lightning.callback import MonitorCallback, configured
from stepscope.integrations.profiler.profile import EpochProfiles, ProfileOptions
from stepscope.integrations.profiler.trace_file import MAX_BYTES

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from stepscope.integrations.lightning.recording import FitRecording

MOST_NAME = 80
"""Characters of an operation in the name of its metric."""


class ProfilerCallback(MonitorCallback):
    """Run torch's profiler over some batches of chosen epochs, on rank 0. Off by default: it slows these batches down.

    Epochs count from 0, as in Lightning. A trace is `<output_dir>/chrome_trace_epoch_<n>.json`.
    """

    @configured("profiler")
    def __init__(  # noqa: PLR0913 - compatible options
        self,
        enabled: bool = False,  # noqa: FBT001, FBT002 - compatible spelling
        profile_epochs: Sequence[int] = (1, 5, 10),
        profile_steps: int = 100,
        warmup_steps: int = 5,
        activities: Sequence[str] = ("cpu", "cuda"),
        *,
        record_shapes: bool = True,
        with_stack: bool = False,
        output_dir: str | os.PathLike[str] = "profiler_traces",
        export_chrome_trace: bool = True,
        log_top_k_ops: int = 15,
        profile_memory: bool = True,
        max_trace_bytes: int = MAX_BYTES,
        project: str | None = None,
    ) -> None:
        """Prepare; nothing starts before the fit.

        Args:
            enabled: true turns the profiler on.
            profile_epochs: epochs to profile, from 0.
            profile_steps: batches to record in each epoch; fewer if the epoch is shorter.
            warmup_steps: batches before recording in which the profiler runs but its results are discarded.
            activities: devices to profile, "cpu" and "cuda"; missing devices are skipped.
            record_shapes: record the shapes of tensors.
            with_stack: record the source location of each operation; slower.
            output_dir: folder of the traces.
            export_chrome_trace: write the traces.
            log_top_k_ops: slowest operations to print, by own time.
            profile_memory: record allocations of operations.
            max_trace_bytes: size limit in bytes; a larger trace is compressed, or dropped.
            project: project of a new run, if there is no current run.
        """
        super().__init__(enabled=enabled, project=project)
        self.profile_epochs = [int(epoch) for epoch in profile_epochs]
        self.output_dir = Path(output_dir)
        self.options: dict[str, Any] = {
            "steps": int(profile_steps),
            "warmup": int(warmup_steps),
            "activities": tuple(map(str, activities)),
            "record_shapes": bool(record_shapes),
            "with_stack": bool(with_stack),
            "memory": bool(profile_memory),
            "top": int(log_top_k_ops),
            "export": bool(export_chrome_trace),
            "max_bytes": int(max_trace_bytes),
        }
        ProfileOptions(**self.options).checked()
        self.profiles: EpochProfiles | None = None
        """The profiles of this fit, with their `results` by epoch; None before."""

    def fit_begins(self, trainer: Any, recording: FitRecording) -> None:
        """Prepare the profiles, and say if no epoch will be profiled."""
        if not trainer.is_global_zero:
            return
        self.profiles = EpochProfiles(
            self.output_dir,
            self.profile_epochs,
            run=recording.run,
            show=lambda line: self.say(trainer, line),
            **self.options,
        )
        last = trainer.max_epochs
        if last is not None and 0 <= last <= min(self.profile_epochs, default=last):
            self.say(trainer, f"Profiler: no epoch of {self.profile_epochs} is trained: they are 0 to {last - 1}")

    def epoch_begins(self, trainer: Any, _recording: FitRecording) -> None:
        """Begin a profile, if this epoch is to be profiled."""
        if self.profiles is not None:
            self.profiles.begin(trainer.current_epoch)

    def batch_ended(self, trainer: Any, recording: FitRecording, batch_index: int) -> None:
        """Count the batch; the profile ends with the last one at the latest, so that it contains no evaluation."""
        if self.profiles is None:
            return
        self.profiles.step()
        if batch_index + 1 == trainer.num_training_batches:
            self._end_profile(trainer, recording)

    def epoch_ended(self, trainer: Any, recording: FitRecording) -> None:
        """End a profile that is still open."""
        self._end_profile(trainer, recording)

    def _end_profile(self, trainer: Any, recording: FitRecording) -> None:
        result = None if self.profiles is None else self.profiles.end()
        if result is None or result.error:
            return
        figures = {f"profiler/{one.name[:MOST_NAME]}/time_ratio": one.share for one in result.operations}
        epoch = recording.epoch
        if epoch.seconds > 0:
            waited = min(1.0, recording.actions.waited_seconds / epoch.seconds)
            figures["profiler/data_wait_ratio"] = waited
            self.say(
                trainer, f"Profiler: {format_value(waited, 'ratio')} of the epoch's time was spent waiting for data"
            )
        recording.run.log(figures)

    def fit_ended(self) -> None:
        """End a profile that is still open."""
        if self.profiles is not None:
            self.profiles.end()
