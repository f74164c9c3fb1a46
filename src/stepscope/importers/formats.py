"""The formats that can be read, and `read`: any file or folder of another tool, recognized by content.

File names are ignored, because logs are called anything. A folder is searched; files that are not runs are skipped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.importers import own_export, training_logger
from stepscope.importers.binary import swanlab, tfevents, wandb
from stepscope.importers.logs import (
    console_log,
    jsonl,
    lightning_csv,
    megatron,
    megatron_golden,
    mllog,
    step_log,
    torchtitan,
    trainer_state,
)
from stepscope.importers.nvidia_smi import table as nvidia_smi
from stepscope.importers.source import head, size_of, unreadable
from stepscope.importers.trackers import clearml, comet, goodseed, mlflow_files, mlflow_sql, neptune, pluto, trackio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.importers.imported import Imported
    from stepscope.importers.run_builder import ImportFormat
    from stepscope.importers.source import FileHead

MOST_FILES = 10_000
"""Maximum files read in a folder."""
DEEPEST = 8
"""Maximum depth of the search."""
RUN_FILES = (".wandb", ".swanlab")
REPEATING_FOLDERS = {"files", "logs", "tmp", "debug", "media"}
"""Folders beside a run file of W&B or SwanLab that repeat the run."""
OUR_RUN = {"run.json", "nodes", "tail"}
"""What a folder of a run of ours has in it: it needs no reader."""
_MODULES = (
    *(own_export, training_logger, tfevents, wandb, swanlab),
    *(mlflow_sql, mlflow_files, trackio, neptune, clearml, comet, goodseed, pluto),
    *(trainer_state, megatron_golden, mllog, nvidia_smi, torchtitan, jsonl),
    *(megatron, lightning_csv, step_log, console_log),
)
FORMATS: dict[str, ImportFormat] = {module.FORMAT.name: module.FORMAT for module in _MODULES}
"""By name, in the order in which they are tried: specific formats come before those that any text could match."""


def detect(path: str) -> ImportFormat | None:
    """Return the format of a file, by its content; None if unknown."""
    return recognised(head(path))


def recognised(beginning: FileHead) -> ImportFormat | None:
    """Return the format of a file that begins so; None if unknown."""
    return next((form for form in FORMATS.values() if form.recognises(beginning)), None)


def read(path: str, form: str | None = None) -> list[Imported]:
    """Return the runs in a file or folder of another tool, ordered by path.

    Args:
        path: a file, or a folder that is searched for files of any format.
        form: name of the format, if it cannot be detected; in a folder, only files of this format are read.

    Raises:
        StepscopeError: nothing there can be read. In a folder, some files may not: the first run notes these.
    """
    found = survey(path, form)
    parts = [read_batch(batch) for batch in found.batches]
    runs = sorted((run for some, _ in parts for run in some), key=lambda run: (run.path, run.key))
    problems = [*found.problems, *(problem for _, some in parts for problem in some)]
    if not runs:
        raise problems[0] if problems else nothing_in(path)
    first, *others = runs
    return [replace(first, notes=(*first.notes, *(f"beside it: {error}" for error in problems[:10]))), *others]


def nothing_in(folder: str) -> StepscopeError:
    """Return the error for a folder in which there is nothing to read."""
    return unreadable(folder, "no file in it is of a format that Stepscope reads", f"it reads {', '.join(FORMATS)}")


class Batch(NamedTuple):
    """Files, or folders, of one format that are read together, because they may be one run."""

    format: str
    paths: tuple[str, ...]
    size: int
    """Bytes on disk."""


@dataclass(frozen=True)
class Survey:
    """What is in a file or folder of another tool."""

    batches: tuple[Batch, ...]
    problems: tuple[StepscopeError, ...] = ()
    """Files that cannot be read."""
    others: int = 0
    """Number of files of no known format."""


def survey(path: str, form: str | None = None) -> Survey:
    """Return what there is to read in a file or folder, by a look at the start of each file.

    Raises:
        StepscopeError: it is a file that cannot be read.
    """
    path = os.fspath(path)
    known = ", ".join(FORMATS)
    if form is not None and form not in FORMATS:
        raise UsageError(f"read {path!r} as {form!r}", "there is no such format", f"take one of {known}")
    chosen = None
    if not os.path.isdir(path):
        chosen = FORMATS[form] if form is not None else detect(path)
        if chosen is None:
            raise unreadable(path, "its content is of no format that Stepscope reads", f"it reads {known}")
    chosen = chosen or owner(path)
    return _survey_folder(path, form) if chosen is None else Survey((Batch(chosen.name, (path,), size_of(path)),))


def _survey_folder(folder: str, form: str | None) -> Survey:
    together: dict[tuple[str, str], list[str]] = {}
    problems: list[StepscopeError] = []
    others = 0
    for number, path in enumerate(sources(folder)):
        if number >= MOST_FILES:
            cause, remedy = f"it has more than {MOST_FILES} files", "give the folders in it one by one"
            problems.append(unreadable(folder, f"{cause}; the others are left out", remedy))
            break
        try:
            found = owner(path) if os.path.isdir(path) else detect(path)
        except StepscopeError as error:
            problems.append(error)
            continue
        if found is None or form not in {None, found.name}:
            others += 1
        else:
            place = path if found.unite is list else trainer_state.folder_of(path)
            together.setdefault((found.name, place), []).append(path)
    for place in [place for name, place in together if name == "tfevents"]:  # Lightning may write the same run twice
        tables = together.get(("csv", place), [])
        tables[:] = [path for path in tables if os.path.basename(path) != "metrics.csv"]
    batches = [Batch(name, tuple(some), sum(map(size_of, some))) for (name, _), some in together.items() if some]
    return Survey(tuple(batches), tuple(problems), others)


def read_batch(batch: Batch) -> tuple[list[Imported], list[StepscopeError]]:
    """Return the runs of a batch, and the errors of files that cannot be read."""
    form, runs, problems = FORMATS[batch.format], [], []
    for path in batch.paths:
        try:
            runs += form.read_all(path)
        except StepscopeError as error:
            problems.append(error)
    return form.unite(runs), problems


def owner(folder: str) -> ImportFormat | None:
    """Return the format that a folder as a whole is of; None if its files are read one by one."""
    try:
        names = set(os.listdir(folder))
    except OSError:
        return None
    return next((form for form in FORMATS.values() if form.owns_folder(folder, names)), None)


def sources(folder: str) -> Iterator[str]:
    """Yield what may be read in a folder: files, and folders that are one thing, ordered by name, a few levels deep.

    Links to folders and runs of ours are not followed. Folders beside a run file of W&B or SwanLab repeat the run.
    """
    for place, folders, names in os.walk(folder):
        if OUR_RUN.issubset({*folders, *names}):
            folders.clear()
            continue
        if any(form.owns_folder(place, {*folders, *names}) for form in FORMATS.values()):
            folders.clear()
            yield place
            continue
        folders.sort()
        if place[len(folder) :].count(os.sep) >= DEEPEST - 1:
            folders.clear()
        if any(name.endswith(RUN_FILES) for name in names):
            folders[:] = [name for name in folders if name not in REPEATING_FOLDERS]
        for name in sorted(names):
            if not name.startswith(".") and os.path.isfile(os.path.join(place, name)):
                yield os.path.join(place, name)
