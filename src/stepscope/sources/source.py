"""Decide what an argument such as RUN names: a run of ours, a file of another tool, or a saved baseline."""

from __future__ import annotations

import glob
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.sources.baselines import find_baseline
from stepscope.store.catalog import locate, runs_root
from stepscope.store.layout import RUN_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepscope.importers.imported import Imported
    from stepscope.sources.opened_run import OpenedRun

RUN, FILE, BASELINE = "run", "file", "baseline"


@dataclass(frozen=True)
class RunSource:
    """One thing that an argument names."""

    kind: str
    """RUN: the folder of a recorded run. FILE: a file or folder of another tool. BASELINE: a saved baseline."""
    path: str
    note: str = ""
    """Which run was chosen and why, where that is not obvious."""

    def past(self) -> OpenedRun:
        """Open a recorded run. Raises StepscopeError if the source is no recorded run, or it cannot be read."""
        from stepscope.sources.opened_run import open_run  # loads numpy: a run that is not found needs none

        return open_run(self.path)

    def imported(self) -> list[Imported]:
        """Read the runs in a file or folder of another tool. Raises StepscopeError if nothing in it can be read."""
        from stepscope.importers.transfer import read  # loads every reader

        return read(self.path)

    @contextmanager
    def opened(self) -> Iterator[OpenedRun]:
        """Open the one run of this source; a file of another tool becomes a run for as long as it is open.

        Raises StepscopeError if the source cannot be read or holds several runs.
        """
        if self.kind == RUN:
            yield self.past()
            return
        what = f"open {self.path!r}"
        if self.kind == BASELINE:
            raise UsageError(what, "it is a saved baseline", "compare a run with it: stepscope compare BASELINE RUN")
        found = self.imported()
        if len(found) > 1:
            remedy = f"give one file, or store them: stepscope import {self.path}"
            raise UsageError(what, f"there are {len(found)} runs in it", remedy)
        from stepscope.sources.imported_run import store
        from stepscope.sources.opened_run import open_run

        with tempfile.TemporaryDirectory(prefix="stepscope-") as scratch:
            yield open_run(store(found[0], Path(scratch)).path)

    def diagnoses(self) -> list[dict[str, Any]]:
        """Return the diagnosis of each run in this source. Raises StepscopeError if it cannot be read."""
        if self.kind == RUN:
            return [self.past().diagnose()]
        from stepscope.importers.traces.pipeline_trace import traces_in
        from stepscope.sources.diagnosis import diagnose_imported, diagnose_operations

        found = [diagnose_operations(path, columns) for path, columns in traces_in(self.path)]
        return found or [diagnose_imported(run) for run in self.imported()]


def resolve(argument: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> RunSource:
    """Return the one thing that an argument names; `root` holds the runs. Raises StepscopeError if there is none.

    The argument is a run (its folder, its id or a unique start of it, "project/id", its display name, or "latest"), a
    file or folder of another tool, or the file of a baseline.
    """
    path = os.fspath(argument)
    if _is_run(path):
        return RunSource(RUN, os.path.abspath(path))
    if os.path.isfile(path):
        return RunSource(FILE if find_baseline(path, root) is None else BASELINE, path)
    try:
        found = locate(path, root)
    except StepscopeError:
        if os.path.isdir(path):
            return RunSource(FILE, path)
        raise
    return RunSource(RUN, str(found.path), found.note)


def resolve_all(
    argument: str, root: str | os.PathLike[str] | None = None, notify: Callable[[str], object] | None = None
) -> Iterator[RunSource]:
    """Yield everything that an argument names, and call `notify` with the note of each source that has one.

    The argument is as for `resolve`, or a folder of runs, a project, the name of a baseline, a pattern, or several of
    these separated by commas. Raises StepscopeError if nothing has that name.
    """
    parts = [argument] if os.path.exists(argument) else [part for part in argument.split(",") if part]
    for source in (source for part in parts for source in _part(part, root)):
        if source.note and notify is not None:
            notify(source.note)
        yield source


def _part(part: str, root: str | os.PathLike[str] | None) -> Iterator[RunSource]:
    saved = find_baseline(part, root)
    if saved is not None:
        yield RunSource(BASELINE, str(saved))
    elif glob.has_magic(part) and not os.path.exists(part):
        for path in sorted(glob.glob(part)):
            yield from _part(path, root)
    else:
        is_project = os.sep not in part and not os.path.exists(part)
        folder = runs_root(root) / part if is_project else Path(part)
        patterns = () if _is_run(part) or not folder.is_dir() else ("*", "*/*")
        folders = sorted(path.parent for pattern in patterns for path in folder.glob(f"{pattern}/{RUN_FILE}"))
        yield from (RunSource(RUN, str(path)) for path in folders)
        if not folders:
            yield RunSource(FILE, part) if os.path.isdir(part) and not _is_run(part) else resolve(part, root)


def _is_run(path: str) -> bool:
    return os.path.isfile(os.path.join(path, RUN_FILE))
