"""A Lightning logger that writes into a Stepscope run."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from stepscope.integrations.lightning.base import PACKAGE, Logger
from stepscope.integrations.target_run import nameless_id, take_run
from stepscope.integrations.walls import guarded
from stepscope.recorder.complaints import Complaints

if TYPE_CHECKING:
    import argparse
    import os
    from collections.abc import Mapping

    from stepscope.session.run import Run

rank_zero_experiment = importlib.import_module(f"{PACKAGE.__name__}.loggers.logger").rank_zero_experiment
rank_zero_only = PACKAGE.utilities.rank_zero_only


class StepscopeLogger(Logger):  # type: ignore[misc]
    """Record what a module logs, in the current run of the process or in a new one that starts at the first use."""

    stepscope_run = True
    """Our callbacks recognize the logger by this, and record into the same run."""

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        *,
        dir: str | os.PathLike[str] | None = None,  # noqa: A002 - as in stepscope.init
        run: Run | None = None,
        **options: Any,
    ) -> None:
        """Prepare; nothing starts.

        Args:
            project: folder of runs that belong together.
            name: name of the run.
            dir: root of all runs.
            run: a run to record into; it is not ended with the training.
            options: further options of `stepscope.init`.
        """
        super().__init__()
        given = {"project": project, "name": name, "dir": dir}
        self._options = {**{key: value for key, value in given.items() if value is not None}, **options}
        self._run, self._owned = run, False
        self.notices = Complaints()

    def begin(self, **options: Any) -> Run:
        """Begin the run, if it has not begun; `options` add to those of the constructor."""
        if self._run is None:
            chosen = {**options, **self._options}
            if "run_id" not in chosen and (new := nameless_id(chosen.get("project"))) is not None:
                chosen["run_id"] = new  # this is rank 0: our callbacks send it to the others
            self._run, self._owned = take_run(**chosen)
        return self._run

    @property
    def run(self) -> Run:
        """The run; started on first use."""
        return self.begin()

    @property
    @rank_zero_experiment  # type: ignore[untyped-decorator]
    def experiment(self) -> Run:
        """The same, under Lightning's name; on ranks other than 0 an object that does nothing."""
        return self.run

    @staticmethod
    def _is_first() -> bool:
        """Return whether this is rank 0: a module logs the same values on all ranks."""
        return not getattr(rank_zero_only, "rank", 0)

    @property
    def name(self) -> str | None:
        """Project of the run."""
        return self._options.get("project") or (self._run.project if self._run is not None else None)

    @property
    def version(self) -> str | None:
        """Id of the run, once it has begun."""
        return self._run.id if self._run is not None else None

    @property
    def save_dir(self) -> str | None:
        """None: checkpoints do not go into the run's folder."""
        return None

    @guarded
    def log_hyperparams(self, params: dict[str, Any] | argparse.Namespace, *_: Any, **__: Any) -> None:
        """Record the parameters as an event."""
        if self._is_first():
            self.run.own_event("hyperparameters", values=dict(params if isinstance(params, dict) else vars(params)))

    @guarded
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record a row."""
        if self._is_first():
            self.run.log(dict(metrics), step=step)

    @guarded
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Record the path of the best checkpoint."""
        if self._is_first():
            self.run.own_event("checkpoint_saved", best=str(getattr(checkpoint_callback, "best_model_path", "")))

    @guarded
    def finalize(self, status: str) -> None:
        """End the run, if the logger has started it."""
        run, owned = self._run, self._owned
        if run is not None and owned and self._is_first():
            self._run, self._owned = None, False
            # Lightning calls this while it handles the exception that ended the training.
            run.finish(sys.exc_info()[1] if status == "failed" else None)
