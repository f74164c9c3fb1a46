"""What W&B's files of a run hold, row by row, read with our own importer."""

from __future__ import annotations

from pathlib import Path

from stepscope.importers.binary import level_log
from stepscope.importers.binary.wandb import HISTORY
from stepscope.importers.binary.wandb_history import item
from stepscope.importers.binary.wire import fields

SUMMARY = 3


def files_in(folder):
    """Return the files of a folder in which W&B keeps runs, oldest first."""
    return sorted(Path(folder, "wandb").glob("*run-2*/*.wandb"))


def _items(path, number):
    for some in level_log.records(str(path), 0, str):
        for record in some:
            for part in fields(record):
                if part.number == number:
                    yield dict(item(one.data) for one in fields(part.data) if one.number == 1)


def rows_in(folder):
    """Return each row of the history of all files."""
    return [row for path in files_in(folder) for row in _items(path, HISTORY)]


def summary_in(folder):
    """Return the summary, as all updates of all files leave it."""
    found = {}
    for path in files_in(folder):
        for update in _items(path, SUMMARY):
            found |= update
    return found
