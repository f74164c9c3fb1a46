"""Find runs: by path, id, unique prefix, or the newest; and list them all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.config import discover, load_or_default
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.places import find_places
from stepscope.store.layout import RUN_FILE, RunFolder
from stepscope.store.meta import read_meta
from stepscope.store.salvage import salvage
from stepscope.store.states import overall, read_nodes

if TYPE_CHECKING:
    from stepscope.store.reader import Past

LATEST = "latest"


@dataclass(frozen=True)
class RunInfo:
    """One line of the list of runs."""

    path: Path
    id: str
    name: str
    project: str
    state: str
    """As `Past.state`, or "broken"."""
    cause: str
    created: float
    """Seconds since 1970 UTC."""
    duration: float | None
    """Seconds from the start to the end, or to the last sign of life; None if nothing is known."""
    step: int | None
    """The last step of any rank."""


def runs_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that holds the projects: as given, else STEPSCOPE_DIR, `store.dir`, or ./stepscope-runs."""
    if root is not None:
        return Path(root).absolute()
    config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
    return Path(config.get("store.dir")).absolute()


def runs(dir: str | os.PathLike[str] | None = None) -> list[RunInfo]:  # noqa: A002 - the public spelling
    """Return the runs below a folder, newest first; a broken one is listed as broken with its reason."""
    root = runs_root(dir)
    salvage_quietly()
    found = [_info(path) for path in run_folders(root)]
    return sorted(found, key=lambda info: (info.created, info.id), reverse=True)


def open_run(run: str | os.PathLike[str], dir: str | os.PathLike[str] | None = None) -> Past:  # noqa: A002 - the public spelling
    """Open a recorded run for reading.

    Args:
        run: its folder, its id, a unique start of its id, or "latest".
        dir: where to look for an id; as in `stepscope.runs`.

    Raises:
        StepscopeError: there is no such run, or it cannot be read.
    """
    from stepscope.store.reader import Past

    path = find_run(run, dir)
    salvage_quietly()  # all of them: when it was recorded, this run's path may have been spelt in another way
    return Past(RunFolder(path))


def find_run(run: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of a run. Raises StepscopeError as `open_run` does."""
    direct = Path(run).absolute()
    if (direct / RUN_FILE).is_file():
        return direct
    text = os.fspath(run)
    base = runs_root(root)
    if text == LATEST:
        newest = runs(base)
        if not newest:
            raise StepscopeError("open the latest run", f"there is none in {base}", "record one, or name its root")
        return newest[0].path
    matches = [path for path in run_folders(base) if path.name.startswith(text)]
    exact = [path for path in matches if path.name == text] or matches
    if len(exact) == 1:
        return exact[0]
    if not exact:
        raise StepscopeError(f"open run {text!r}", f"no such folder and no such id in {base}", "see `stepscope runs`")
    some = ", ".join(sorted(path.name for path in exact)[:4])
    raise UsageError(f"open run {text!r}", f"{len(exact)} runs start so ({some})", "give more of the id, or its folder")


def salvage_quietly(run_path: str | None = None) -> int:
    """Bring home the rows of dead processes of this user; a problem shows in the run, not here."""
    try:
        return salvage(find_places(), run_path)
    except OSError:
        return 0


def run_folders(root: Path) -> list[Path]:
    """Return the folders of runs below `root`: of a project each, or directly."""
    found = []
    for project in _subfolders(root):
        if (project / RUN_FILE).is_file():
            found.append(project)
        else:
            found += [run for run in _subfolders(project) if is_run(run)]
    return found


def is_run(path: Path) -> bool:
    """Say whether a folder of a project is that of a run."""
    return (path / RUN_FILE).is_file() or (path / "tail").is_dir()


def _subfolders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # removed since, or another user's
        return []


def _info(path: Path) -> RunInfo:
    folder = RunFolder(path)
    try:
        meta = read_meta(folder)
    except StepscopeError as error:
        made = changed_at(path)
        return RunInfo(path, path.name, path.name, path.parent.name, "broken", error.cause, made, None, None)
    nodes, _ = read_nodes(folder)
    state, cause = overall(nodes)
    ranks = [rank for node in nodes for rank in node.ranks.values()]
    started = min((rank.started for rank in ranks if rank.started), default=None)
    ended = max([rank.ended or 0 for rank in ranks] + [node.time for node in nodes if not node.ended], default=0)
    duration = (ended - started) / 1e6 if started and ended else None
    step = max((rank.step for rank in ranks if rank.step is not None), default=None)
    created = meta.get("created", 0) / 1e6
    name, project = meta.get("name", ""), meta.get("project", "")
    return RunInfo(path, meta["id"], name, project, state, cause, created, duration, step)


def changed_at(path: Path) -> float:
    """Return when a file or folder was changed last, in seconds since 1970; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
