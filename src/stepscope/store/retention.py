"""Keep the runs within limits of size, age and number; and remove what interrupted work has left in them.

Only whole runs go, the oldest first. A run that may still be written, a folder that is not plainly a run of ours, and
whatever a link points at are left alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core import ring
from stepscope.core.errors import StepscopeError
from stepscope.core.places import find_places
from stepscope.store.layout import FOLDERS, RUN_FILE, RunFolder
from stepscope.store.meta import read_meta
from stepscope.store.states import read_nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from stepscope.store.layout import Span

GIB = 2**30
DAY = 86400.0
LOST_GRACE = DAY
"""Seconds of silence after which a run that never ended counts as over: its node may only be out of reach."""
CLAIM_GRACE = 60.0
"""Seconds that a process has from joining a run to its first sign of life."""
SUPERSEDED_AFTER = 600.0
"""Seconds that a file stays which a later one replaces: a reader may be in it."""
LEFTOVER_AFTER = DAY
"""Seconds after which a temporary file belongs to nobody."""
REMOVING = ".removing-"
"""Start of the name that a run has while it is deleted."""
REMEDY = "see who owns it, and whether the disk is writable"
_LEFTOVER = re.compile(r"\.tmp-.+|\..+\.json\.\d+(\..+)?")
_PARTS = (".parquet", ".blocks.parquet", ".sum")
"""The files of a sealed unit; without the first no reader sees the others."""


@dataclass(frozen=True)
class Limits:
    """What the runs may take together; 0 is no limit."""

    max_size_gb: float = 0.0
    """GiB."""
    max_age_days: float = 0.0
    """Days since the last sign of life."""
    max_runs: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Limits:
        """Read the limits from the configuration's keys; what is absent is no limit."""
        keys = ("max_size_gb", "max_age_days", "max_runs")
        return cls(**{key: settings[f"store.{key}"] for key in keys if settings.get(f"store.{key}")})

    def any(self) -> bool:
        """Say whether there is a limit at all."""
        return bool(self.max_size_gb or self.max_age_days or self.max_runs)


@dataclass(frozen=True)
class Candidate:
    """A run, as far as limits care."""

    path: Path
    bytes: int
    seen: float
    """Last sign of life, seconds since 1970 UTC."""
    running: bool = False
    """Whether it is, or may be, still written."""


@dataclass(frozen=True)
class Removal:
    """What goes, and why."""

    path: Path
    bytes: int
    reason: str


def plan(candidates: Iterable[Candidate], limits: Limits, now: float) -> list[Removal]:
    """Return the runs to remove, oldest first; running ones count towards the limits and never go."""
    ordered = sorted(candidates, key=lambda candidate: (candidate.seen, candidate.path))
    number, size = len(ordered), sum(candidate.bytes for candidate in ordered)
    removals = []
    for candidate in ordered:
        reason = None if candidate.running else _reason(limits, (now - candidate.seen) / DAY, number, size)
        if reason is not None:
            removals.append(Removal(candidate.path, candidate.bytes, reason))
            number, size = number - 1, size - candidate.bytes
    return removals


def _reason(limits: Limits, days: float, number: int, size: int) -> str | None:
    """Return why the oldest run goes, given how many runs and bytes there are; None if it may stay."""
    if limits.max_age_days and days > limits.max_age_days:
        return f"older than {limits.max_age_days:g} days"
    if limits.max_runs and number > limits.max_runs:
        return f"more than {limits.max_runs} runs"
    if limits.max_size_gb and size > limits.max_size_gb * GIB:
        return f"more than {limits.max_size_gb:g} GiB"
    return None


def find_candidates(root: Path, now: float | None = None) -> list[Candidate]:
    """Return the runs below `root`; a folder whose run.json is not one of ours is none."""
    now = time.time() if now is None else now
    busy = with_rings()
    return [candidate for path in run_folders(root) if (candidate := examine(path, now, busy)) is not None]


def run_folders(root: Path) -> Iterator[Path]:
    """Yield what may be a run: a folder with a run.json, in `root` or in a project there. Links are passed over."""
    for folder in _real_folders(root):
        if (folder / RUN_FILE).is_file():
            yield folder
        else:
            yield from (run for run in _real_folders(folder) if (run / RUN_FILE).is_file())


def _real_folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            found = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # not there, or not ours to look into
        return []
    return sorted(Path(entry.path) for entry in found if not entry.name.startswith("."))


def examine(path: Path, now: float, busy: Collection[str]) -> Candidate | None:
    """Return what limits need to know of a run; None if it is not plainly one of ours.

    Args:
        path: its folder.
        now: seconds since 1970 UTC.
        busy: runs that have rings, as `with_rings` has them.
    """
    folder = RunFolder(path)
    try:
        meta = read_meta(folder)
        made = path.stat().st_mtime
    except (StepscopeError, OSError):  # what cannot be read is never removed
        return None
    if not any((path / name).is_dir() for name in FOLDERS):
        return None
    nodes, problems = read_nodes(folder)
    signs = [node.time / 1e6 for node in nodes]
    signs += [rank.ended / 1e6 for node in nodes for rank in node.ranks.values() if rank.ended]
    seen = max(signs, default=max(made, meta.get("created", 0) / 1e6))
    unended = not nodes or bool(problems) or any(not node.ended for node in nodes)
    running = (unended and now - seen < LOST_GRACE) or _is_claimed(path, seen, now)
    return Candidate(path, size_of(path), seen, running or os.path.realpath(path) in busy)


def _is_claimed(path: Path, seen: float, now: float) -> bool:
    """Say whether a process has joined the run after its last sign of life: its watcher has not written yet."""
    try:
        joined = (path / "claims").stat().st_mtime
    except OSError:  # nobody has joined
        return False
    return joined > seen and now - joined < CLAIM_GRACE


def with_rings() -> set[str]:
    """Return the real paths of the runs whose rows lie in a ring here: being written, or waiting to be salvaged."""
    found = set()
    with contextlib.suppress(OSError):
        for path in find_places().rings():
            # It was drained and removed since, or is being made: its run counts as running by its other signs.
            with contextlib.suppress(OSError, ValueError, TypeError, struct.error), open(path, "rb") as file:
                file.seek(ring.IDENTITY_OFFSET)
                found.add(os.path.realpath(ring.Identity.decode(file.read(ring.HEADER_BYTES)).run_path))
    return found


def size_of(path: Path) -> int:
    """Return the bytes of all files below a folder, without following links."""
    total = 0
    with contextlib.suppress(FileNotFoundError):  # the folder itself went meanwhile
        for _, _, files, descriptor in os.fwalk(path):
            total += sum(_size(name, descriptor) for name in files)
    return total


def apply(root: Path, limits: Limits, keep: Collection[Path] = (), now: float | None = None) -> list[Removal]:
    """Remove what is beyond the limits; return what went. The runs in `keep` count and stay.

    Raises:
        StepscopeError: one could not be removed; those before it are gone.
    """
    if not limits.any():
        return []
    now = time.time() if now is None else now
    kept = {Path(path).absolute() for path in keep}
    found = [candidate for candidate in find_candidates(root, now) if candidate.path not in kept]
    found += [Candidate(path, size_of(path), now, running=True) for path in kept if path.is_dir()]
    done = []
    for removal in plan(found, limits, now):
        again = examine(removal.path, now, with_rings())  # it may have been resumed since we looked
        if again is not None and not again.running:
            remove(removal.path, root)
            done.append(removal)
    return done


def remove(path: Path, root: Path) -> None:
    """Delete the run at `path`, below `root`: first it gets a hidden name, then its files go. Follows no link.

    Raises:
        StepscopeError: it is not below the root, a link leads there, or the system refuses.
    """
    what = f"remove run {path}"
    parts = _below(path, root)
    if not 1 <= len(parts) <= 2:
        raise StepscopeError(what, f"it is not a run's place below {root}", "give the root that holds it")
    try:
        with _opened(root, parts[:-1]) as parent:
            if not stat.S_ISDIR(os.stat(parts[-1], dir_fd=parent, follow_symlinks=False).st_mode):
                raise StepscopeError(what, "it is a link or a file, not a folder", "remove it by hand")
            hidden = f"{REMOVING}{parts[-1]}-{os.urandom(4).hex()}"
            os.rename(parts[-1], hidden, src_dir_fd=parent, dst_dir_fd=parent)
            _delete(hidden, parent)
    except OSError as error:
        raise StepscopeError(
            what, error.strerror or error, "see who owns it and whether the disk is writable"
        ) from error


def _below(path: Path, root: Path) -> tuple[str, ...]:
    """Return the steps from `root` down to `path`; empty if it does not lie there as written."""
    try:
        parts = path.absolute().relative_to(root.absolute()).parts
    except ValueError:
        return ()
    return () if ".." in parts else parts


@contextlib.contextmanager
def _opened(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Open the folder `parts` below `root`, each step of the way a real folder."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptors = [os.open(root, flags)]
    try:
        for part in parts:
            descriptors.append(os.open(part, flags | os.O_NOFOLLOW, dir_fd=descriptors[-1]))
        yield descriptors[-1]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _delete(name: str, parent: int) -> None:
    for _, folders, files, descriptor in os.fwalk(name, topdown=False, dir_fd=parent):
        for file in files:
            os.unlink(file, dir_fd=descriptor)
        for folder in folders:
            try:
                os.rmdir(folder, dir_fd=descriptor)
            except NotADirectoryError:  # a link to one
                os.unlink(folder, dir_fd=descriptor)
    os.rmdir(name, dir_fd=parent)


def leftovers(root: Path, now: float | None = None) -> list[Removal]:
    """Return what interrupted work has left below `root`: replaced files, temporary files, half-deleted runs."""
    now = time.time() if now is None else now
    found = [
        path for place in (root, *_real_folders(root)) for path in _hidden(place) if path.name.startswith(REMOVING)
    ]
    removals = [Removal(path, size_of(path), "a deletion was interrupted") for path in found]
    for candidate in find_candidates(root, now):
        removals += _replaced(RunFolder(candidate.path), now) + _temporary(candidate.path, now)
    return removals


def _hidden(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.name.startswith(".") and not entry.is_symlink()]
    return []


def _replaced(folder: RunFolder, now: float) -> list[Removal]:
    """Return the units that a compacted one replaces and the tails that a unit holds, once readers had their time."""
    from stepscope.store.compact import is_whole  # loads numpy and DuckDB, which other limits do not need

    units = folder.units()
    removals = []
    for old in [*folder.all_units(), *folder.all_tails()]:
        newer = [unit for unit in units if unit.covers(old) and unit.path != old.path]
        if newer and _age(newer[0].path, now) > SUPERSEDED_AFTER and is_whole(newer[0].path):
            removals += [Removal(part, _size(part), "replaced by a later file") for part in _files(old)]
    return removals


def _files(span: Span) -> list[Path]:
    stem, suffix = os.path.splitext(span.path)
    return [Path(stem + part) for part in _PARTS if os.path.exists(stem + part)] if suffix == _PARTS[0] else [span.path]


def _temporary(run: Path, now: float) -> list[Removal]:
    places = (run, *(run / name for name in FOLDERS))
    found = [path for place in places for path in _hidden(place) if _LEFTOVER.fullmatch(path.name) and path.is_file()]
    return [Removal(path, _size(path), "temporary") for path in found if _age(path, now) > LEFTOVER_AFTER]


def _age(path: Path, now: float) -> float:
    """Return the seconds since a file was written; 0 if it is gone."""
    try:
        return now - path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path | str, parent: int | None = None) -> int:
    """Return the bytes of a file, or of a link itself; 0 if it is gone."""
    try:
        return os.stat(path, dir_fd=parent, follow_symlinks=False).st_size
    except OSError:
        return 0


def clear(leftover: Removal, root: Path) -> None:
    """Delete one of `leftovers`; one that is gone already is no problem. Raises StepscopeError as `remove` does."""
    parts = _below(leftover.path, root)
    if not parts:
        raise StepscopeError(f"remove {leftover.path}", f"it is not below {root}", "give the root that holds it")
    try:
        with _opened(root, parts[:-1]) as parent:
            if parts[-1].startswith(REMOVING):
                _delete(parts[-1], parent)
            else:
                os.unlink(parts[-1], dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        cause = error.strerror or error
        raise StepscopeError(
            f"remove {leftover.path}", cause, "see who owns it, and whether the disk is writable"
        ) from error
