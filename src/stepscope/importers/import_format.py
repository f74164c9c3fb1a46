"""A foreign format: its name, how its files are recognized, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.importers.run_builder import RunBuilder
from stepscope.importers.source import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.importers.imported import Imported
    from stepscope.importers.source import FileHead


@dataclass(frozen=True)
class ImportFormat:
    """One per module; `formats.FORMATS` lists them."""

    name: str
    help: str
    recognises: Callable[[FileHead], bool]
    """Judges the start of a file."""
    fill: Callable[[str, RunBuilder], None]
    """Reads the file at a path into a builder."""
    empty: tuple[str, str] | None = None
    """Cause and remedy of the error for a file without a point; None: it is an empty run."""
    unite: Callable[[Sequence[Imported]], list[Imported]] = list
    """Merges the files of a folder that belong to one run: event files, checkpoints."""
    is_ours: bool = False
    """Whether Stepscope wrote it: names then stay as they are."""

    def read(self, path: str) -> Imported:
        """Return the run in a file."""
        run = RunBuilder()
        self.fill(path, run)
        if not run.columns and self.empty is not None:
            raise unreadable(path, *self.empty)
        return run.imported(path, self.name, is_ours=self.is_ours)
