"""`wandb.init`: which run it is, whether it is a new one, and what is known of it from the start."""

from __future__ import annotations

import atexit
import os
import re
from pathlib import Path
from typing import Any

from stepscope.core.identity import ALLOWED
from stepscope.integrations.wandb_drop_in.config import settings_of
from stepscope.integrations.wandb_drop_in.run import WandbLabels, WandbRun, remember
from stepscope.integrations.wandb_drop_in.settings import Settings, arguments_of
from stepscope.integrations.wandb_drop_in.tensorboard_sync import SYNC
from stepscope.integrations.wandb_drop_in.unknown import NOTICES
from stepscope.recorder.complaints import tell
from stepscope.session import opening
from stepscope.session.current import CURRENT
from stepscope.session.run import Run as Recording

RUNS = "stepscope-runs"
"""Folder of the runs below `init(dir=)`."""


class ActiveRuns:
    """The runs that have begun and not ended; the last is `wandb.run`."""

    def __init__(self) -> None:
        """Start with none."""
        self.run: WandbRun | None = None
        self._runs: list[WandbRun] = []
        self._joined: list[Recording] = []
        self._is_hooked = False

    def add(self, run: WandbRun) -> None:
        """Make a run the current one, until it ends."""
        self.run = run
        self._runs.append(run)
        run.ended = self.remove
        remember(run)
        if not self._is_hooked:
            self._is_hooked = True
            atexit.register(self._settle)

    def remove(self, run: WandbRun) -> None:
        """Forget a run that has ended."""
        self._runs = [other for other in self._runs if other is not run]
        if self.run is run:
            self.run = None

    def finish(self) -> None:
        """End all runs."""
        for run in self._runs:
            run.finish()

    def to_join(self) -> Recording | None:
        """Return the run that `stepscope run` or the script itself began, once; later calls of `init` begin others."""
        found = CURRENT.launched or CURRENT.run
        is_ours = any(run.recording is found for run in self._runs)
        if not found.recording or is_ours or any(other is found for other in self._joined):
            return None
        self._joined.append(found)
        return found

    def _settle(self) -> None:
        for run in self._runs:
            run.settle()


ACTIVE = ActiveRuns()


def init(  # noqa: PLR0913, PLR0917 - W&B's signature
    entity: str | None = None,
    project: str | None = None,
    dir: Any = None,  # noqa: A002
    id: str | None = None,  # noqa: A002
    name: str | None = None,
    notes: str | None = None,
    tags: Any = None,
    config: Any = None,
    config_exclude_keys: Any = None,
    config_include_keys: Any = None,
    allow_val_change: Any = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    force: Any = None,
    reinit: Any = None,
    resume: Any = None,
    resume_from: Any = None,
    fork_from: Any = None,
    save_code: Any = None,
    tensorboard: Any = None,
    sync_tensorboard: Any = None,
    monitor_gym: Any = None,
    settings: Any = None,
    anonymous: Any = None,
    **more: Any,
) -> WandbRun:
    """Begin a run and make it `wandb.run`; never raises. All keywords of W&B are taken.

    What has no meaning here (entity, force, save_code, monitor_gym, fork_from …) has no effect.
    """
    given = {**locals(), **more}
    for word in more:
        NOTICES.say(f"init-{word}", f"wandb.init({word}=...) is unknown here: it has no effect")
    with NOTICES.shield("init", "begin the run as asked") as shield:
        run = _begin({**arguments_of(settings), **{key: value for key, value in given.items() if value is not None}})
    if shield.failed:
        run = WandbRun(Recording.off(), mode="disabled")
        ACTIVE.add(run)
    return run


def _begin(given: dict[str, Any]) -> WandbRun:
    before, reinit = ACTIVE.run, given.get("reinit", "default")
    if before is not None and reinit in (True, "finish_previous"):
        ACTIVE.finish()
    elif before is not None and reinit != "create_new":
        before.config.update(_config_of(given), allow_val_change=True)
        return before
    labels = WandbLabels(**given)
    mode = str(given.get("mode", "online"))
    if mode == "disabled":
        run = WandbRun(Recording.off(), labels, id=_clean(given.get("id")) or os.urandom(4).hex(), mode=mode)
        run.config.update(_config_of(given))
    else:
        run = _record(given, labels, mode)
    ACTIVE.add(run)
    if given.get("sync_tensorboard") or given.get("tensorboard"):
        SYNC.start(run)
    return run


def _record(given: dict[str, Any], labels: WandbLabels, mode: str) -> WandbRun:
    config, name = _config_of(given), given.get("name")
    settings = given.get("settings")
    common: dict[str, Any] = {"mode": mode, "settings": settings if isinstance(settings, Settings) else None}
    joined = ACTIVE.to_join()
    if joined is not None:
        if given.get("id"):
            tell(f"wandb.init(id=...): this run began before and is {joined.id}; see `stepscope run --run-id`")
        if CURRENT.launched is joined:
            CURRENT.join(None, name, labels.ours())
        else:
            CURRENT.later({}, labels=labels.ours(), run=joined)
        run = WandbRun(joined, labels, owns=False, **common)
        run.config.update(config)
    else:
        project = _clean(given.get("project")) or opening.DEFAULT_PROJECT
        root = _root(given.get("dir"))
        run_id, resumed, first_step = _identity(given, project, root)
        if run_id is None and CURRENT.launched is not None:  # its id is in the environment, for its children
            run_id = f"{CURRENT.launched.id}-{os.urandom(2).hex()}"
        begun = opening.init(project, name, config or None, root, run_id=run_id, resume=resumed, **labels.ours())
        stored = _stored_config(begun)
        common |= {"first_step": first_step, "resumed": resumed, "config": stored or config}
        run = WandbRun(begun, labels, **common)
        if begun.attempt:  # the first attempt wrote its own config; from now on all of it is kept in addition
            run.config.update({**stored, **config}, allow_val_change=True)
    if labels.given():
        run.recording.own_event("labels", **labels.given())
    return run


def _config_of(given: dict[str, Any]) -> dict[str, Any]:
    found = settings_of(given.get("config"))
    only, without = given.get("config_include_keys"), given.get("config_exclude_keys") or ()
    return {key: value for key, value in found.items() if key not in without and (only is None or key in only)}


def _clean(text: Any) -> str | None:
    """Return a text as a folder name; None if nothing is left of it."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", str(text or "")).strip(".-")[:64]
    return name if ALLOWED.fullmatch(name) else None


def _root(folder: Any) -> Path | None:
    """Return the root of the runs; None means the usual one, which the user's own choice of it makes stronger."""
    if folder is None:
        return None
    from stepscope.store.catalog import chosen_root  # only who gives a folder needs it

    return None if chosen_root()[1] else Path(folder) / RUNS


def _identity(given: dict[str, Any], project: str, root: Path | None) -> tuple[str | None, bool, int]:
    """Return the id of the run, whether it continues a stored one, and its first step."""
    run_id, resume = _clean(given.get("id")), given.get("resume")
    if run_id is None and resume not in (True, "auto"):
        return None, False, 0
    from stepscope.store.catalog import ready_folder, run_info, runs, runs_root  # only who names or resumes a run

    if run_id is None:  # W&B resumes the last run on this machine if that did not end well
        last = next((info for info in runs(root) if info.project == project), None)
        if last is None or last.state in {"finished", "running"}:
            return None, False, 0
        run_id = last.id
    folder = runs_root(root) / project / run_id
    if not folder.is_dir():
        if resume == "must":
            tell(f"wandb.init(resume='must'): there is no run {run_id} in {folder.parent}; it begins now")
        return run_id, False, 0
    if resume == "never":
        other = f"{run_id[:59]}-{os.urandom(2).hex()}"
        tell(f"wandb.init(resume='never'): run {run_id} exists; this one is {other}")
        return other, False, 0
    is_resumed = resume in (True, "allow", "must", "auto")
    step = run_info(ready_folder(folder).path).step if is_resumed else None
    return run_id, is_resumed, 0 if step is None else step + 1


def _stored_config(run: Recording) -> dict[str, Any]:
    """Return the settings that an earlier attempt of the run has stored."""
    if not run.attempt:
        return {}
    from stepscope.store.layout import RunFolder  # most runs have no earlier attempt
    from stepscope.store.meta import read_meta

    found = read_meta(RunFolder(run.path)).get("config")
    return found if isinstance(found, dict) else {}
