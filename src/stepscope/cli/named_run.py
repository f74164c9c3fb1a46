"""Open the run that somebody named, and say which one it is where that is not plain."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stepscope.cli.text.plain import plain
from stepscope.store import catalog

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from stepscope.store.reader import Past


def find_run(run: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of a run; see `catalog.locate`."""
    found = catalog.locate(run, root)
    if found.note:
        say(found.note)
    return found.path


def open_run(run: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Past:
    """Open a run for reading; see `catalog.open_run`."""
    return catalog.open_run(find_run(run, root))


def say(note: str) -> None:
    """Say on standard error which run was chosen."""
    print(f"stepscope: {plain(note)}", file=sys.stderr, flush=True)
