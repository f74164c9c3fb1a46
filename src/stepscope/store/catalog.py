"""List the runs of a folder, and find one by folder, id, `project/id`, display name, or "latest"."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.config import discover, load_or_default
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.core.places import find_places
from stepscope.store.known_roots import known_roots, reachable
from stepscope.store.layout import RUN_FILE, RunFolder
from stepscope.store.meta import read_meta
from stepscope.store.salvage import await_rows, salvage
from stepscope.store.states import overall, read_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

LATEST = "latest"
MOST_ELSEWHERE = 20
"""Maximum number of other folders to search."""


@dataclass(frozen=True)
class RunInfo:
    """One entry in the list of runs."""

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
    """Seconds from the start to the end, or to the last heartbeat; None if unknown."""
    step: int | None
    """The last step of any rank."""
    tags: tuple[str, ...] = ()
    group: str = ""


def runs_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder that holds the projects: as given, else STEPSCOPE_DIR, `store.dir`, or ./stepscope-runs."""
    return chosen_root(root)[0]


def chosen_root(root: str | os.PathLike[str] | None = None) -> tuple[Path, bool]:
    """Return the folder that holds the projects, and whether the user chose it rather than getting the default."""
    if root is not None:
        return Path(root).absolute(), True
    config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
    return Path(config.get("store.dir")).absolute(), "store.dir" in config.sources


def runs(dir: str | os.PathLike[str] | None = None) -> list[RunInfo]:  # noqa: A002 - the public spelling
    """Return the runs below a folder, newest first. A broken run is listed with its reason."""
    root = runs_root(dir)
    salvage_quietly()
    found = [run_info(path) for path in run_folders(root)]
    return sorted(found, key=lambda info: (info.created, info.id), reverse=True)


class LocatedRun(NamedTuple):
    """A run, and a remark on how it was found."""

    path: Path
    note: str = ""
    """Empty if there is nothing to explain."""


def ready_folder(run: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> RunFolder:
    """Find a run as `locate` does, and recover the rows of dead processes before anyone reads it."""
    path = locate(run, root).path
    with contextlib.suppress(OSError):  # this machine has no runtime folder, so it has no ring
        await_rows(find_places(), str(path))
    salvage_quietly()  # every ring: the run's path may have been spelt differently when it was recorded
    return RunFolder(path)


def locate(run: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> LocatedRun:
    """Find a run below `root`, else in the default folder, else in any folder where this user has recorded runs.

    Raises StepscopeError if there is no such run, UsageError if several match.
    """
    direct = Path(run).absolute()
    if (direct / RUN_FILE).is_file():
        return LocatedRun(direct)
    text = os.fspath(run)
    base, is_given = chosen_root(root)
    if text == LATEST:
        return _latest(base, is_given=is_given)
    found = _named(base, text)
    if found is not None:
        return found
    others = [] if is_given else elsewhere(base)
    for other in others:
        found = _named(other, text)
        if found is not None:
            return LocatedRun(found.path, f"run {found.path.name} is in {other}")
    more = f", nor in {len(others)} other folders of yours" if others else ""
    cause = f"no such folder, no such id and no such name in {base}{more}"
    raise StepscopeError(f"open run {text!r}", cause, "see `stepscope runs`")


def elsewhere(base: Path) -> list[Path]:
    """Return the other existing folders in which this user has recorded runs, most recently used first."""
    return reachable([root.path for root in known_roots() if root.path != base][:MOST_ELSEWHERE])


def _latest(base: Path, *, is_given: bool) -> LocatedRun:
    own = runs(base)
    if own:
        return LocatedRun(own[0].path)
    others = [] if is_given else elsewhere(base)
    found = [(info, other) for other in others for info in runs(other)]
    if not found:
        raise StepscopeError("open the latest run", f"there is none in {base}", "record one, or name its root")
    newest, other = max(found, key=lambda each: (each[0].state == "running", each[0].created))
    name = "" if newest.name in {"", newest.id} else f" ({newest.name})"
    which = f"{newest.project}/{newest.id}{name}, {newest.state}"
    return LocatedRun(newest.path, f"there is no run in {base}: this is {which} in {other}")


def _named(base: Path, text: str) -> LocatedRun | None:
    """Return the run that a text names below a folder: by id, by project and id, by name, or by a prefix of its id."""
    folders = run_folders(base)
    project, slash, word = text.rpartition("/")
    within = [path for path in folders if path.parent.name == project] if slash else folders
    exact = [path for path in within if path.name == word]
    if exact:
        return _one_of(text, exact)
    called = list(_with_name(within, word)) or list(_with_name(folders, text))
    if called:
        newest = max((run_info(path) for path in called), key=lambda info: info.created)
        note = f"{len(called)} runs are called {text!r}: this is the newest, {newest.id}" if len(called) > 1 else ""
        return LocatedRun(newest.path, note)
    return _one_of(text, [path for path in within if word and path.name.startswith(word)])


def _one_of(text: str, paths: list[Path]) -> LocatedRun | None:
    if len(paths) < 2:
        return LocatedRun(paths[0]) if paths else None
    is_plain = len({path.name for path in paths}) == len(paths)
    some = ", ".join(sorted(path.name if is_plain else f"{path.parent.name}/{path.name}" for path in paths)[:4])
    remedy = "give more of the id, its project/id, or its folder"
    raise UsageError(f"open run {text!r}", f"{len(paths)} runs start so ({some})", remedy)


def _with_name(folders: list[Path], name: str) -> Iterator[Path]:
    for path in folders:
        try:
            if read_meta(RunFolder(path)).get("name") == name:
                yield path
        except StepscopeError:  # broken, or just being created: it has no name
            continue


def salvage_quietly(run_path: str | None = None) -> int:
    """Recover the rows of this user's dead processes. Problems show up in the run, not here."""
    try:
        return salvage(find_places(), run_path)
    except OSError:
        return 0


def run_folders(root: Path) -> list[Path]:
    """Return the folders of runs below `root`, inside a project's folder or directly."""
    found = []
    for project in _subfolders(root):
        if (project / RUN_FILE).is_file():
            found.append(project)
        else:
            found += [run for run in _subfolders(project) if is_run(run)]
    return found


def is_run(path: Path) -> bool:
    """Return whether a folder holds a run."""
    return (path / RUN_FILE).is_file() or (path / "tail").is_dir()


def _subfolders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # deleted since, or owned by another user
        return []


def run_info(path: Path) -> RunInfo:
    """Return one entry of the list, without reading any points."""
    folder = RunFolder(path)
    try:
        meta = read_meta(folder)
    except StepscopeError as error:
        made = changed_at(path)
        return RunInfo(path, path.name, path.name, path.parent.name, "broken", error.cause, made, None, None)
    nodes, _ = read_nodes(folder)
    state, cause = overall(nodes)
    ranks = [rank for node in nodes for rank in node.ranks.values()]
    started = min(
        (node.true(rank.started) for node in nodes for rank in node.ranks.values() if rank.started), default=None
    )
    ends = [node.true(rank.ended) for node in nodes for rank in node.ranks.values() if rank.ended]
    ended = max([*ends, *(node.true(node.time) for node in nodes if not node.ended)], default=0)
    duration = (ended - started) / 1e6 if started and ended else None
    step = max((rank.step for rank in ranks if rank.step is not None), default=None)
    created = meta.get("created", 0) / 1e6
    name, project = meta.get("name", ""), meta.get("project", "")
    tags, group = meta["labels"]["tags"], meta["labels"]["group"]
    return RunInfo(path, meta["id"], name, project, state, cause, created, duration, step, tags, group)


def changed_at(path: Path) -> float:
    """Return the modification time of a file or folder in seconds since 1970; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
