"""The functions of the package that need no run, or act on the current one."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Any

from stepscope.integrations.wandb_drop_in.errors import before_init
from stepscope.integrations.wandb_drop_in.settings import Settings
from stepscope.integrations.wandb_drop_in.starting import ACTIVE
from stepscope.integrations.wandb_drop_in.unknown import NOTICES

if TYPE_CHECKING:
    from stepscope.integrations.wandb_drop_in.artifacts import Artifact
    from stepscope.integrations.wandb_drop_in.metrics import MetricDefinition
    from stepscope.integrations.wandb_drop_in.run import WandbRun


class AlertLevel(enum.Enum):
    """How urgent an alert is."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


def _run(name: str) -> WandbRun:
    """Return the current run; raise `wandb.Error` if there is none, as W&B does."""
    run = ACTIVE.run
    if run is None:
        raise before_init(name)
    return run


def log(data: Any, step: Any = None, commit: Any = None, **_: Any) -> None:
    """Record values in the current run."""
    run = ACTIVE.run
    if run is None:
        raise before_init("log()")
    run.history.log(data, step, commit)


def finish(exit_code: int | None = None, quiet: Any = None) -> None:
    """End the current run, if there is one."""
    if ACTIVE.run is not None:
        ACTIVE.run.finish(exit_code, quiet)


join = finish


def define_metric(*args: Any, **more: Any) -> MetricDefinition:
    """Say which metric is the step of others, and what the summary keeps."""
    return _run("define_metric()").define_metric(*args, **more)


def alert(*args: Any, **more: Any) -> None:
    """Record an alert of the script's own."""
    _run("alert()").alert(*args, **more)


def watch(*args: Any, **more: Any) -> tuple[()]:
    """Instrument models."""
    return _run("watch()").watch(*args, **more)


def unwatch(*args: Any, **more: Any) -> None:
    """Measure on."""
    _run("unwatch()").unwatch(*args, **more)


def save(*args: Any, **more: Any) -> list[str]:
    """Record files by path, size and hash."""
    return _run("save()").save(*args, **more)


def restore(name: Any, *args: Any, **more: Any) -> Any:
    """Open a file of the current run's folder."""
    return _run("restore()").restore(name, *args, **more)


def log_artifact(*args: Any, **more: Any) -> Artifact:
    """Record an artifact."""
    return _run("log_artifact()").log_artifact(*args, **more)


def use_artifact(*args: Any, **more: Any) -> Artifact:
    """Return an artifact that was logged before."""
    return _run("use_artifact()").use_artifact(*args, **more)


def log_model(*args: Any, **more: Any) -> Artifact:
    """Record a model's file or folder."""
    return _run("log_model()").log_model(*args, **more)


def use_model(*args: Any, **more: Any) -> str:
    """Return the path of a model."""
    return _run("use_model()").use_model(*args, **more)


def link_model(*args: Any, **more: Any) -> Artifact:
    """Record a model."""
    return _run("link_model()").link_model(*args, **more)


def mark_preempting() -> None:
    """Record that the machine will be taken away."""
    _run("mark_preempting()").mark_preempting()


def login(*_: Any, **__: Any) -> bool:
    """Return True: there is no account, and no key is stored."""
    return True


def setup(settings: Any = None) -> Any:
    """Return an object with `settings`; there is nothing to prepare."""
    return Settings(settings=settings if isinstance(settings, Settings) else Settings())


def teardown(exit_code: int | None = None) -> None:
    """End all runs."""
    del exit_code
    ACTIVE.finish()


def require(*_: Any, **__: Any) -> None:
    """Accept any requirement."""


def ensure_configured() -> None:
    """Do nothing: there is nothing to configure."""


def termlog(string: Any = "", newline: bool = True, repeat: bool = True, **_: Any) -> None:  # noqa: FBT001, FBT002
    """Print a line for the person at the terminal, once with `repeat=False`."""
    text = f"wandb: {string}"
    if not repeat:
        NOTICES.counts[text] += 1
        if NOTICES.counts[text] > 1:
            return
    try:
        sys.stderr.write(text + ("\n" if newline else ""))
    except (OSError, ValueError, AttributeError):  # a closed or broken terminal
        return


termwarn = termerror = termlog


def termsetup(*_: Any, **__: Any) -> None:
    """Do nothing: lines are printed as they come."""


def generate_id(length: int = 8) -> str:
    """Return a random id."""
    import secrets  # only who asks for an id

    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(length))
