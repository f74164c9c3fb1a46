"""Keep the runs within limits of size, age and number, and delete what interrupted work left in them.

Only whole runs are deleted, oldest first. A run that may still be written, a folder that is not clearly a run of ours,
and the target of a link are left alone.
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
from stepscope.store.checksum import BLOCKS, POINTS, SUM, beside
from stepscope.store.layout import FOLDERS, RUN_FILE, RunFolder, age_of
from stepscope.store.meta import read_meta
from stepscope.store.states import read_nodes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from stepscope.store.layout import FileSpan

GIB = 2**30
DAY = 86400.0
LOST_GRACE = DAY
"""Seconds without a heartbeat after which a run that never ended counts as over: its node may only be unreachable."""
CLAIM_GRACE = 60.0
"""Seconds from joining a run to the first heartbeat."""
LEFTOVER_AFTER = DAY
"""Seconds after which a temporary file counts as abandoned."""
REMOVING = ".removing-"
"""Name prefix of a run that is being deleted."""
REMEDY = "see who owns it, and whether the disk is writable"
_LEFTOVER = re.compile(r"\.tmp-.+|\..+\.json\.\d+(\..+)?")


@dataclass(frozen=True)
class RetentionLimits:
    """Limits on all runs together; 0 is no limit."""

    max_size_gb: float = 0.0
    """GiB."""
    max_age_days: float = 0.0
    """Days since the last heartbeat."""
    max_runs: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> RetentionLimits:
        """Read the limits from the configuration; a missing key is no limit."""
        keys = ("max_size_gb", "max_age_days", "max_runs")
        return cls(**{key: settings[f"store.{key}"] for key in keys if settings.get(f"store.{key}")})

    def any(self) -> bool:
        """Return whether there is any limit."""
        return bool(self.max_size_gb or self.max_age_days or self.max_runs)


@dataclass(frozen=True)
class Candidate:
    """A run, as the limits see it."""

    path: Path
    bytes: int
    seen: float
    """Last heartbeat, in seconds since 1970 UTC."""
    running: bool = False
    """Whether it is, or may be, still written."""


@dataclass(frozen=True)
class Removal:
    """A run to delete, and why."""

    path: Path
    bytes: int
    reason: str


def plan(candidates: Iterable[Candidate], limits: RetentionLimits, now: float) -> list[Removal]:
    """Return the runs to delete, oldest first; running ones count towards the limits and are never deleted."""
    ordered = sorted(candidates, key=lambda candidate: (candidate.seen, candidate.path))
    number, size = len(ordered), sum(candidate.bytes for candidate in ordered)
    removals = []
    for candidate in ordered:
        reason = None if candidate.running else _reason(limits, (now - candidate.seen) / DAY, number, size)
        if reason is not None:
            removals.append(Removal(candidate.path, candidate.bytes, reason))
            number, size = number - 1, size - candidate.bytes
    return removals


def _reason(limits: RetentionLimits, days: float, number: int, size: int) -> str | None:
    """Return why the oldest run must go, given how many runs and bytes there are; None if it may stay."""
    if limits.max_age_days and days > limits.max_age_days:
        return f"older than {limits.max_age_days:g} days"
    if limits.max_runs and number > limits.max_runs:
        return f"more than {limits.max_runs} runs"
    if limits.max_size_gb and size > limits.max_size_gb * GIB:
        return f"more than {limits.max_size_gb:g} GiB"
    return None


def find_candidates(root: Path, now: float | None = None) -> list[Candidate]:
    """Return the runs below `root`; a folder whose run.json is not ours is skipped."""
    now = time.time() if now is None else now
    busy = with_rings()
    return [candidate for path in run_folders(root) if (candidate := examine(path, now, busy)) is not None]


def run_folders(root: Path) -> Iterator[Path]:
    """Yield possible runs: folders with a run.json, in `root` or in a project there. Links are skipped."""
    for folder in _real_folders(root):
        if (folder / RUN_FILE).is_file():
            yield folder
        else:
            yield from (run for run in _real_folders(folder) if (run / RUN_FILE).is_file())


def _real_folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            found = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # missing, or not readable by us
        return []
    return sorted(Path(entry.path) for entry in found if not entry.name.startswith("."))


def examine(path: Path, now: float, busy: Collection[str]) -> Candidate | None:
    """Return what the limits need to know about a run; None if it is not clearly one of ours.

    `now` is in seconds since 1970 UTC, `busy` are the runs that have rings (`with_rings`).
    """
    folder = RunFolder(path)
    try:
        meta = read_meta(folder)
        made = path.stat().st_mtime
    except (StepscopeError, OSError):  # an unreadable run is never deleted
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
    """Return whether a process has joined the run since its last heartbeat: its watcher has not written yet."""
    try:
        joined = (path / "claims").stat().st_mtime
    except OSError:  # no process has joined
        return False
    return joined > seen and now - joined < CLAIM_GRACE


def with_rings() -> set[str]:
    """Return the real paths of runs whose rows are in a ring here: being written, or waiting to be salvaged."""
    found = set()
    with contextlib.suppress(OSError):
        for path in find_places().rings():
            # It was drained and deleted since, or is being created: other signs show that its run is running.
            with contextlib.suppress(OSError, ValueError, TypeError, struct.error), open(path, "rb") as file:
                file.seek(ring.IDENTITY_OFFSET)
                found.add(os.path.realpath(ring.RingIdentity.decode(file.read(ring.HEADER_BYTES)).run_path))
    return found


def size_of(path: Path) -> int:
    """Return the bytes of all files below a folder, without following links."""
    total = 0
    with contextlib.suppress(FileNotFoundError):  # the folder itself was deleted meanwhile
        for _, _, files, descriptor in os.fwalk(path):
            total += sum(_size(name, descriptor) for name in files)
    return total


def apply(root: Path, limits: RetentionLimits, keep: Collection[Path] = (), now: float | None = None) -> list[Removal]:
    """Delete runs beyond the limits; return which. The runs in `keep` count and stay.

    Raises StepscopeError if a run could not be deleted; those before it are gone.
    """
    if not limits.any():
        return []
    now = time.time() if now is None else now
    kept = {Path(path).absolute() for path in keep}
    found = [candidate for candidate in find_candidates(root, now) if candidate.path not in kept]
    found += [Candidate(path, size_of(path), now, running=True) for path in kept if path.is_dir()]
    done = []
    for removal in plan(found, limits, now):
        again = examine(removal.path, now, with_rings())  # it may have been resumed in the meantime
        if again is not None and not again.running:
            remove(removal.path, root)
            done.append(removal)
    return done


def remove(path: Path, root: Path) -> None:
    """Delete the run at `path`, below `root`: rename it to a hidden name, then delete its files.

    Raises StepscopeError if it is not below the root, a link leads there (none is followed), or the system refuses.
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
        raise StepscopeError(what, error.strerror or error, REMEDY) from error


def _below(path: Path, root: Path) -> tuple[str, ...]:
    """Return the path components from `root` to `path`; empty if `path` is not below `root`."""
    try:
        parts = path.absolute().relative_to(root.absolute()).parts
    except ValueError:
        return ()
    return () if ".." in parts else parts


@contextlib.contextmanager
def _opened(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Open the folder `parts` below `root`; each component must be a real folder."""
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
            except NotADirectoryError:  # a link to a folder
                os.unlink(folder, dir_fd=descriptor)
    os.rmdir(name, dir_fd=parent)


def leftovers(root: Path, now: float | None = None) -> list[Removal]:
    """Return what interrupted work left below `root`: replaced files, temporary files, half-deleted runs."""
    from stepscope.store.compact import replaced  # loads DuckDB, which other limits do not need

    now = time.time() if now is None else now
    hidden = [path for place in (root, *_real_folders(root)) for path in _hidden(place)]
    found = [path for path in hidden if path.name.startswith(REMOVING)]
    removals = [Removal(path, size_of(path), "a deletion was interrupted") for path in found]
    for candidate in find_candidates(root, now):
        folder = RunFolder(candidate.path)
        for old in replaced(folder, [*folder.all_units(), *folder.all_tails()], now):
            removals += [Removal(part, _size(part), "replaced by a later file") for part in _files(old)]
        removals += _temporary(candidate.path, now)
    return removals


def _hidden(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.name.startswith(".") and not entry.is_symlink()]
    return []


def _files(span: FileSpan) -> list[Path]:
    """Return the files of a tail, or of a sealed unit; without the first of these no reader sees the others."""
    if span.path.suffix != POINTS:
        return [span.path]
    return [path for path in (beside(span.path, part) for part in (POINTS, BLOCKS, SUM)) if path.exists()]


def _temporary(run: Path, now: float) -> list[Removal]:
    places = (run, *(run / name for name in FOLDERS))
    found = [path for place in places for path in _hidden(place) if _LEFTOVER.fullmatch(path.name) and path.is_file()]
    return [Removal(path, _size(path), "temporary") for path in found if age_of(path, now) > LEFTOVER_AFTER]


def _size(path: Path | str, parent: int | None = None) -> int:
    """Return the bytes of a file, or of a link itself; 0 if it is gone."""
    try:
        return os.stat(path, dir_fd=parent, follow_symlinks=False).st_size
    except OSError:
        return 0


def clear(leftover: Removal, root: Path) -> None:
    """Delete one of `leftovers`; it may be gone already. Raises StepscopeError as `remove` does."""
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
        raise StepscopeError(f"remove {leftover.path}", error.strerror or error, REMEDY) from error
