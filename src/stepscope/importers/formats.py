"""The formats that can be read, and `read`: any file or folder of another tool, recognized by content.

File names are ignored, because logs are called anything. A folder is searched; files that are not runs are skipped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.importers import own_export
from stepscope.importers.binary import tfevents, wandb
from stepscope.importers.logs import (
    console_log,
    jsonl,
    lightning_csv,
    megatron,
    megatron_golden,
    mllog,
    resource_logs,
    step_log,
    trainer_state,
)
from stepscope.importers.nvidia_smi import table as nvidia_smi
from stepscope.importers.source import head, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepscope.importers.imported import Imported
    from stepscope.importers.source import Head

MOST_FILES = 10_000
"""Maximum files read in a folder."""
DEEPEST = 8
"""Maximum depth of the search."""
WANDB_FOLDERS = {"files", "logs", "tmp"}


@dataclass(frozen=True)
class Format:
    """A foreign format: what it is, how its files are recognized and read."""

    name: str
    help: str
    recognises: Callable[[Head], bool]
    """Judges the start of a file; specific formats come before those that any text could match."""
    read: Callable[[str], Imported]
    unite: Callable[[Sequence[Imported]], list[Imported]] = list
    """Merges the files of a folder that belong to one run: event files, checkpoints."""


FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        Format(own_export.NAME, "what `stepscope export` writes", own_export.recognises, own_export.read),
        Format("training_logger", "a TrainingLogger's export", own_export.recognises_logger, own_export.of_logger),
        Format("tfevents", "TensorBoard event file", tfevents.recognises, tfevents.read, tfevents.join),
        Format("wandb", "Weights & Biases run file", wandb.recognises, wandb.read),
        Format(
            "trainer_state",
            "Transformers' trainer_state.json",
            trainer_state.recognises,
            trainer_state.read,
            trainer_state.furthest,
        ),
        Format(
            "megatron_golden", "Megatron's reference values of a test", megatron_golden.recognises, megatron_golden.read
        ),
        Format("mllog", "MLPerf log (:::MLLOG)", mllog.recognises, mllog.read),
        Format("nvidia_smi", "nvidia-smi log: csv, dmon or the table", nvidia_smi.recognises, nvidia_smi.read),
        Format("jsonl", "JSON rows", jsonl.recognises, jsonl.read),
        Format("megatron", "Megatron, DeepSpeed or NeMo log lines", megatron.recognises, megatron.read),
        Format(
            "csv",
            "CSV with a step or time, as Lightning's metrics.csv",
            lightning_csv.recognises,
            lightning_csv.read,
            resource_logs.unite,
        ),
        Format("step_log", "log lines such as step:10 loss:2.5", step_log.recognises, step_log.read),
        Format(
            "console_log",
            "a program's own report: a table, or figures under a step",
            console_log.recognises,
            console_log.read,
        ),
    )
}
"""By name, in the order in which they are tried."""


def detect(path: str) -> Format | None:
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
    if form is not None and form not in FORMATS:
        raise UsageError(f"read {path!r} as {form!r}", "there is no such format", f"take one of {', '.join(FORMATS)}")
    if os.path.isdir(path):
        return _read_folder(path, form)
    chosen = FORMATS[form] if form is not None else detect(path)
    if chosen is None:
        known = ", ".join(FORMATS)
        raise unreadable(path, "its content is of no format that Stepscope reads", f"it reads {known}")
    return [chosen.read(path)]


def _read_folder(folder: str, form: str | None) -> list[Imported]:
    by_format: dict[str, list[Imported]] = {name: [] for name in FORMATS}
    failed: list[StepscopeError] = []
    for path in files(folder):
        try:
            found = detect(path)
            if found is not None and form in {None, found.name}:
                by_format[found.name].append(found.read(path))
        except StepscopeError as error:
            failed.append(error)
    runs = [run for name, some in by_format.items() for run in FORMATS[name].unite(some)]
    if runs:
        return _with_failures(_once(runs), failed)
    if failed:
        raise failed[0]
    raise unreadable(folder, "no file in it is of a format that Stepscope reads", f"it reads {', '.join(FORMATS)}")


def files(folder: str) -> Iterator[str]:
    """Yield the files of a folder ordered by name, a few levels deep; links to folders are not followed.

    Folders beside a W&B run file are skipped: they repeat the run.
    """
    left = MOST_FILES
    for place, folders, names in os.walk(folder):
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


def _once(runs: Sequence[Imported]) -> list[Imported]:
    """Leave out a metrics.csv beside event files: Lightning writes the same run to both. Ordered by path."""
    logged = {os.path.dirname(run.path) for run in runs if run.format == "tfevents"}
    doubled = {
        run.path for run in runs if os.path.basename(run.path) == "metrics.csv" and os.path.dirname(run.path) in logged
    }
    kept = (run for run in runs if run.path not in doubled)
    return sorted(kept, key=lambda run: run.path)


def _with_failures(runs: list[Imported], failed: Sequence[StepscopeError]) -> list[Imported]:
    """Add what could not be read to the notes of the first run."""
    if failed:
        runs[0] = replace(runs[0], notes=(*runs[0].notes, *(f"beside it: {error}" for error in failed[:10])))
    return runs
