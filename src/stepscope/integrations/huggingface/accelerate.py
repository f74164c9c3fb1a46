"""A tracker for Accelerate that writes into a Stepscope run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.tracking import GeneralTracker

from stepscope.integrations.target_run import take_run
from stepscope.integrations.walls import guarded
from stepscope.recorder.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.session.run import Run


class StepscopeTracker(GeneralTracker):  # type: ignore[misc]
    """Record what `accelerator.log` receives, on every process as its own rank of one run."""

    name = "stepscope"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str | None = None, *, run: Run | None = None, **options: Any) -> None:
        """Prepare; nothing starts.

        Args:
            run_name: the project that `init_trackers` names.
            run: a run to record into; it is not ended by `end_training`.
            options: further options of `stepscope.init`.
        """
        super().__init__()
        self.notices = Complaints()
        self._options = {**({"project": run_name} if run_name else {}), **options}
        self._run, self._owned = run, False

    @property
    def run(self) -> Run:
        """The run; started on first use."""
        if self._run is None:
            self._run, self._owned = take_run(**self._options)
        return self._run

    @property
    def tracker(self) -> Run:
        """The same, under Accelerate's name."""
        return self.run

    @guarded
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record the training's configuration."""
        if self._run is None:
            self._options.setdefault("config", dict(values))
        self.run.own_event("hyperparameters", values=dict(values))

    @guarded
    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Record a row; tensors are read without waiting for a device."""
        self.run.log(dict(values), step=step)

    @guarded
    def finish(self) -> None:
        """End the run, if the tracker has started it."""
        run, owned = self._run, self._owned
        self._run, self._owned = None, False
        if run is not None and owned:
            run.finish()


def register() -> None:
    """Make `Accelerator(log_with="stepscope")` mean this tracker."""
    from accelerate.tracking import register_tracker_class

    register_tracker_class(StepscopeTracker)
