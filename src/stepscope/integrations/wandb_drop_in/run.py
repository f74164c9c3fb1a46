"""The run that `wandb.init` returns."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

from stepscope.integrations.wandb_drop_in.config import RunConfig
from stepscope.integrations.wandb_drop_in.history import LogHistory
from stepscope.integrations.wandb_drop_in.run_files import RunFiles
from stepscope.integrations.wandb_drop_in.settings import Settings
from stepscope.integrations.wandb_drop_in.summary import Summary
from stepscope.integrations.wandb_drop_in.unknown import NOTICES, unknown
from stepscope.session.current import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from stepscope.integrations.wandb_drop_in.metrics import MetricDefinition
    from stepscope.session.run import Run as Recording

SETTLE_SECONDS = 0.3
"""Maximum wait at the end of a run for the hashes of its files, and for its settings to be written."""


class WandbLabels:
    """What a script says of its run: free text for people."""

    def __init__(self, **given: Any) -> None:
        """Take the arguments of `init`."""
        tags = given.get("tags") or ()
        self.tags: tuple[str, ...] = (tags,) if isinstance(tags, str) else tuple(map(str, tags))
        self.notes = str(given.get("notes") or "")
        self.group = str(given.get("group") or "")
        self.job_type = str(given.get("job_type") or "")
        self.entity = str(given.get("entity") or "")

    def given(self) -> dict[str, Any]:
        """Return those that are not empty."""
        return {key: list(value) if key == "tags" else value for key, value in vars(self).items() if value}

    def ours(self) -> dict[str, Any]:
        """Return those that are labels of our runs too."""
        return {"tags": self.tags, "notes": self.notes, "group": self.group}


class WandbRun(RunFiles):
    """A run with W&B's methods. Every call is safe in any state; after its end, calls have no effect."""

    def __init__(
        self,
        recording: Recording,
        labels: WandbLabels | None = None,
        *,
        id: str = "",  # noqa: A002 - W&B's spelling
        first_step: int = 0,
        mode: str = "online",
        resumed: bool = False,
        owns: bool = True,
        settings: Settings | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        """Record into `recording`.

        `config` is what is stored already; `owns` says that the end ends the recording too.
        """
        super().__init__(recording)
        self.labels = labels or WandbLabels()
        self._id, self._mode, self._owns = id or recording.id, mode, owns
        self.resumed, self.starting_step, self.start_time = resumed, first_step, time.time()
        self.settings = settings or Settings()
        self.sweep_id = self.sweep_url = None
        self.config = RunConfig(self._keep_config, config or {})
        self.summary = Summary(self._keep_summary)
        self.history = LogHistory(recording, self.summary, first_step)
        self._files: str | None = None
        self._is_over = False
        self.ended: Callable[[WandbRun], None] | None = None
        """Called when the run has ended."""

    # --- who it is ---

    @property
    def id(self) -> str:
        """The id that the script gave, or the folder's name."""
        return self._id

    @property
    def name(self) -> str:
        """The display name."""
        return self.recording.name or (f"dummy-{self._id}" if self.disabled else self._id)

    @name.setter
    def name(self, value: Any) -> None:
        self.recording.name = str(value)
        self._keep({}, {"name": str(value)})

    @property
    def project(self) -> str:
        """The project."""
        return self.recording.project or "dummy"

    @property
    def entity(self) -> str:
        """What the script named; there are no accounts here."""
        return self.labels.entity

    @property
    def path(self) -> str:
        """Project and id."""
        return f"{self.project}/{self._id}"

    @property
    def dir(self) -> str:
        """A folder for the script's own files, beside the run's; it exists."""
        if self._files is None:
            with NOTICES.shield("dir", "make the folder for the script's files", "a temporary folder is used"):
                if self.recording.recording or self.recording.id:
                    folder = self.recording.path / "files"
                    folder.mkdir(parents=True, exist_ok=True)
                    self._files = str(folder)
            self._files = self._files or tempfile.mkdtemp(prefix="stepscope-files-")
        return self._files

    @property
    def url(self) -> str | None:
        """The run's folder as an address; None if nothing is recorded."""
        return self.recording.path.as_uri() if self.recording.id else None

    @property
    def project_url(self) -> str | None:
        """The project's folder as an address."""
        return self.recording.path.parent.as_uri() if self.recording.id else None

    def get_url(self) -> str | None:
        """Return the run's folder as an address."""
        return self.url

    def get_project_url(self) -> str | None:
        """Return the project's folder as an address."""
        return self.project_url

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags."""
        return self.labels.tags

    @tags.setter
    def tags(self, value: Any) -> None:
        self._relabel("tags", (value,) if isinstance(value, str) else tuple(map(str, value or ())))

    @property
    def notes(self) -> str | None:
        """The notes."""
        return self.labels.notes or None

    @notes.setter
    def notes(self, value: Any) -> None:
        self._relabel("notes", str(value))

    @property
    def group(self) -> str:
        """The group."""
        return self.labels.group

    @property
    def job_type(self) -> str:
        """The sort of job."""
        return self.labels.job_type

    @property
    def step(self) -> int:
        """W&B's own counter."""
        return self.history.step

    @property
    def disabled(self) -> bool:
        """Whether nothing is recorded, by `mode="disabled"`."""
        return self._mode == "disabled"

    @property
    def offline(self) -> bool:
        """Whether the script asked for an offline run; every run is recorded on this machine."""
        return self._mode in {"offline", "dryrun"}

    # --- what it records ---

    def log(self, data: Any, step: Any = None, commit: Any = None, **_: Any) -> None:
        """Record values; see `LogHistory.log`."""
        self.history.log(data, step, commit)

    def define_metric(
        self,
        name: Any,
        step_metric: Any = None,
        step_sync: Any = None,
        hidden: Any = None,
        summary: Any = None,
        **more: Any,
    ) -> MetricDefinition:
        """Say which metric is the step of others, and what the summary keeps."""
        given = {"step_metric": step_metric, "summary": summary, "step_sync": step_sync, "hidden": hidden, **more}
        return self.history.define(str(getattr(name, "name", name)), **given)

    def alert(self, title: Any, text: Any = "", level: Any = None, wait_duration: Any = None) -> None:  # noqa: ARG002
        """Record an alert of the script's own as an event."""
        self.recording.event(
            "alert",
            step=self.step,
            title=str(title),
            text=str(text),
            level=str(getattr(level, "value", level or "INFO")),
        )

    def watch(self, models: Any = None, *_: Any, **__: Any) -> tuple[()]:
        """Instrument models; see `stepscope.Run.watch` for what is measured."""
        found = models if isinstance(models, (list, tuple)) else () if models is None else (models,)
        self.recording.watch(*found)
        return ()

    def unwatch(self, models: Any = None) -> None:
        """Measure on: what is measured here costs next to nothing."""

    def log_code(self, *_: Any, **__: Any) -> None:
        """Record nothing: the git commit is part of every run."""

    def mark_preempting(self) -> None:
        """Record that the machine will be taken away."""
        self.recording.own_event("preempting", step=self.step)

    def display(self, *_: Any, **__: Any) -> bool:
        """Show nothing; `stepscope serve` shows the page."""
        return False

    def to_html(self, *_: Any, **__: Any) -> str:
        """Return a link to the run's folder."""
        return f'<a href="{self.url}">{self.path}</a>'

    def restore(self, name: Any, *_: Any, **__: Any) -> Any:
        """Open a file of the run's folder for reading; None if there is none."""
        path = os.path.join(self.dir, str(name))
        return open(path, encoding="utf-8") if os.path.isfile(path) else None

    # --- its end ---

    def finish(self, exit_code: int | None = None, quiet: Any = None) -> None:  # noqa: ARG002 - W&B's signature
        """End the run, as failed if the exit code is not 0; a run that `stepscope run` began goes on."""
        if self._is_over:
            return
        self.settle()
        self._is_over = True
        self.history.end()
        if self._owns:
            error = RuntimeError(f"wandb.finish(exit_code={exit_code})") if exit_code else None
            self.recording.finish(error)
        if self.ended is not None:
            self.ended(self)

    def settle(self) -> None:
        """Record what is held back: an open row, artifacts that are being hashed, settings; at most about 0.5 s."""
        with NOTICES.shield("settle", "record the last values of a run"):
            self.history.close_row()
            self.settle_files(SETTLE_SECONDS)
            CURRENT.settle(self.recording, SETTLE_SECONDS)

    def join(self, exit_code: int | None = None) -> None:
        """End the run."""
        self.finish(exit_code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the run: failed if an exception is propagating (it continues unchanged)."""
        if self._owns and error is not None and not self._is_over:
            self.settle()
            self.recording.__exit__(type(error), error, None)
        self.finish()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"the run has no attribute {name!r}")
        return unknown(f"run.{name}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a reference: in this process the same run, in another one that records nothing."""
        return attach, (self._id,)

    def __repr__(self) -> str:
        return f"<stepscope's wandb run {self.path} in {self.recording.path}>"

    # --- what is stored beside the values ---

    def _label(self, *_: Any, **__: Any) -> None:
        """Ignore what frameworks say of themselves."""

    @property
    def _attach_id(self) -> str:
        return self._id

    def _keep_config(self, found: dict[str, Any]) -> None:
        if found:
            self._keep(found)

    def _keep(self, config: dict[str, Any], labels: dict[str, Any] | None = None) -> None:
        CURRENT.later(config, labels=labels, run=self.recording)

    def _keep_summary(self, found: dict[str, Any]) -> None:
        self.recording.own_event("summary", step=self.step, values=found)

    def _relabel(self, name: str, value: Any) -> None:
        setattr(self.labels, name, value)
        self._keep({}, {name: value})
        self.recording.own_event("labels", step=self.step, **self.labels.given())


_RUNS: dict[str, WandbRun] = {}
"""The runs of this process, by id."""


def remember(run: WandbRun) -> None:
    """Let `attach` find a run."""
    _RUNS[run.id] = run


def attach(run_id: str | None = None, *_: Any, **__: Any) -> WandbRun:
    """Return the run of this process with that id; else one that records nothing, as a spawned process gets."""
    from stepscope.session.run import Run as Recording  # most scripts never attach

    found = _RUNS.get(str(run_id))
    return found if found is not None else WandbRun(Recording.off(), id=str(run_id or ""), mode="disabled")
