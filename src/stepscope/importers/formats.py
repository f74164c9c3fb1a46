"""The formats that can be read, and `read`: any file or folder of another tool, recognized by content.

File names are ignored, because logs are called anything. A folder is searched; files that are not runs are skipped.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.importers import own_export, training_logger
from stepscope.importers.binary import tfevents, wandb
from stepscope.importers.logs import (
    console_log,
    jsonl,
    lightning_csv,
    megatron,
    megatron_golden,
    mllog,
    step_log,
    trainer_state,
)
from stepscope.importers.nvidia_smi import table as nvidia_smi
from stepscope.importers.source import head, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.importers.imported import Imported
    from stepscope.importers.run_builder import ImportFormat

MOST_FILES = 10_000
"""Maximum files read in a folder."""
DEEPEST = 8
"""Maximum depth of the search."""
WANDB_FOLDERS = {"files", "logs", "tmp"}
_MODULES = (
    *(own_export, training_logger, tfevents, wandb, trainer_state, megatron_golden, mllog, nvidia_smi, jsonl),
    *(megatron, lightning_csv, step_log, console_log),
)
FORMATS: dict[str, ImportFormat] = {module.FORMAT.name: module.FORMAT for module in _MODULES}
"""By name, in the order in which they are tried: specific formats come before those that any text could match."""


def detect(path: str) -> ImportFormat | None:
    """Return the format of a file, by its content; None if unknown."""
    beginning = head(path)
    return next((form for form in FORMATS.values() if form.recognises(beginning)), None)


def read(path: str, form: str | None = None) -> list[Imported]:
    """Return the runs in a file or folder of another tool.

    Args:
        path: a file, or a folder that is searched for files of any format.
        form: name of the format, if it cannot be detected; in a folder, only files of this format are read.

    Raises:
        StepscopeError: nothing there can be read.
    """
    path = os.fspath(path)
    known = ", ".join(FORMATS)
    if form is not None and form not in FORMATS:
        raise UsageError(f"read {path!r} as {form!r}", "there is no such format", f"take one of {known}")
    if os.path.isdir(path) and owner(path) is None:
        return _read_folder(path, form)
    if os.path.isdir(path):
        form = form or getattr(owner(path), "name", None)
    chosen = FORMATS[form] if form is not None else detect(path)
    if chosen is None:
        raise unreadable(path, "its content is of no format that Stepscope reads", f"it reads {known}")
    return chosen.read_all(path)


def owner(folder: str) -> ImportFormat | None:
    """Return the format that a folder as a whole is of; None if its files are read one by one."""
    try:
        names = set(os.listdir(folder))
    except OSError:
        return None
    return next((form for form in FORMATS.values() if form.owns_folder(folder, names)), None)


def _read_folder(folder: str, form: str | None) -> list[Imported]:
    """Return the runs of a folder ordered by path; the first one notes what could not be read."""
    by_format: dict[str, list[Imported]] = {name: [] for name in FORMATS}
    failed: list[StepscopeError] = []
    for path in sources(folder):
        try:
            found = owner(path) if os.path.isdir(path) else detect(path)
            if found is not None and form in {None, found.name}:
                by_format[found.name] += found.read_all(path)
        except StepscopeError as error:
            failed.append(error)
    runs = [run for name, some in by_format.items() for run in FORMATS[name].unite(some)]
    if not runs and failed:
        raise failed[0]
    if not runs:
        raise unreadable(folder, "no file in it is of a format that Stepscope reads", f"it reads {', '.join(FORMATS)}")
    # Lightning writes the same run to event files and to a metrics.csv beside them.
    logged = {os.path.dirname(run.path) for run in runs if run.format == "tfevents"}
    doubled = {os.path.join(place, "metrics.csv") for place in logged}
    first, *others = sorted((run for run in runs if run.path not in doubled), key=lambda run: run.path)
    return [replace(first, notes=(*first.notes, *(f"beside it: {error}" for error in failed[:10]))), *others]


def sources(folder: str) -> Iterator[str]:
    """Yield what may be read in a folder: files, and folders that are one thing, ordered by name, a few levels deep.

    Links to folders are not followed. Folders beside a W&B run file are skipped: they repeat the run.
    """
    left = MOST_FILES
    for place, folders, names in os.walk(folder):
        if any(form.owns_folder(place, {*folders, *names}) for form in FORMATS.values()):
            folders.clear()
            yield place
            continue
        folders.sort()
        if place[len(folder) :].count(os.sep) >= DEEPEST - 1:
            folders.clear()
        if any(name.endswith(".wandb") for name in names):
            folders[:] = [name for name in folders if name not in WANDB_FOLDERS]
        for name in sorted(names):
            left -= 1
            if left < 0:
                return
            if not name.startswith(".") and os.path.isfile(os.path.join(place, name)):
                yield os.path.join(place, name)
