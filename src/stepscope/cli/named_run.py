"""Resolve the argument RUN of a command, and print which run was chosen where that is not obvious."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stepscope.core.terminal_text import plain
from stepscope.sources import source
from stepscope.store import catalog

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from stepscope.sources.opened_run import OpenedRun
    from stepscope.sources.source import RunSource


def resolve(argument: str, root: str | None = None) -> RunSource:
    """Return the run or the file that an argument names; see `sources.source.resolve`."""
    found = source.resolve(argument, root)
    if found.note:
        say(found.note)
    return found


def find_run(run: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of a recorded run; see `catalog.locate`."""
    found = catalog.locate(run, root)
    if found.note:
        say(found.note)
    return found.path


def open_run(run: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> OpenedRun:
    """Open a recorded run for reading; see `sources.opened_run.open_run`."""
    path = find_run(run, root)
    from stepscope.sources.opened_run import open_run  # loads numpy and DuckDB: a run that is not found needs neither

    return open_run(path)


def say(note: str) -> None:
    """Print a note on standard error."""
    print(f"stepscope: {plain(note)}", file=sys.stderr, flush=True)
