"""A recorded run that is open for reading: what `stepscope.open` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.store.catalog import ready_folder
from stepscope.store.reader import Past

if TYPE_CHECKING:
    import os


class OpenedRun(Past):
    """A recorded run. Every call reads what is on disk at that moment, so you can follow a live run."""

    def diagnose(self) -> dict[str, Any]:
        """Return why the run is slow or went wrong, as `stepscope diagnose --json` prints it."""
        from stepscope.sources.diagnosis import diagnose  # loads every check of the diagnosis

        return diagnose(self)


def open_run(run: str | os.PathLike[str], dir: str | os.PathLike[str] | None = None) -> OpenedRun:  # noqa: A002 - the public spelling
    """Open a recorded run for reading.

    Args:
        run: its folder, its id or a unique start of it, "project/id", its display name, or "latest".
        dir: where to look; else as in `stepscope.runs`, and then where this user has recorded runs before.

    Raises:
        StepscopeError: there is no such run, or it cannot be read.
    """
    return OpenedRun(ready_folder(run, dir))
