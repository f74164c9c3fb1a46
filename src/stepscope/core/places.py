"""The locations of files between processes: rings in shared memory or on local disk, locks in a private directory."""

from __future__ import annotations

import contextlib
import os
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the directory below it is made private and checked
RING_SUFFIX, SCHEMA_SUFFIX, STACKS_SUFFIX, REQUEST_SUFFIX = ".ring", ".schema", ".stacks", ".request"
SPILL_SUFFIX, WAKE_SUFFIX = ".spill", ".wake"
ASK_SUFFIX, ANSWER_SUFFIX, FLIGHT_SUFFIX = ".ask", ".answer", ".flight"
"""How the watcher asks a trainer where its threads are; its answer; and torch's record of collectives."""
REPLIER = "stepscope-reply"
"""Name of the thread in a trainer that answers, as the kernel knows it: at most 15 characters."""
ALERTING_SUFFIX, SINKS_SUFFIX, NOTICE_SUFFIX = ".alerting", ".sinks", ".notice"
"""The settings of alerts and of sinks, with addresses and their secrets: for the watcher alone, and removed with the
ring; and what the terminal should show."""
COMPANIONS = (
    *(SCHEMA_SUFFIX, STACKS_SUFFIX, REQUEST_SUFFIX, ALERTING_SUFFIX, SINKS_SUFFIX, NOTICE_SUFFIX, WAKE_SUFFIX),
    *(ASK_SUFFIX, ANSWER_SUFFIX, FLIGHT_SUFFIX, f"{ANSWER_SUFFIX}~", f"{FLIGHT_SUFFIX}~"),
)
"""Files next to a ring that are removed with it."""
WATCHER_LOCK, SEAL_LOCK = "watcher.lock", "seal.lock"
HELD: set[Path] = set()
"""Rings that this process writes. Opening and closing one again would release its lock (POSIX), so nothing does."""


class Places(NamedTuple):
    """The private directories of this user on this machine; `shared` is None without shared memory."""

    shared: Path | None
    disk: Path

    def roots(self) -> list[Path]:
        """Return every directory that may hold rings."""
        return [self.disk] if self.shared is None else [self.shared, self.disk]

    def of_run(self, run_path: str, root: Path) -> Path:
        """Return the folder below `root` that holds the rings and the watcher's lock of one run."""
        return root / f"{os.path.basename(run_path)[:80]}-{_digest(run_path)}"

    def rings(self, run_path: str | None = None) -> list[Path]:
        """Return the rings of one run, or of all runs of this user, without those that this process writes."""
        found: list[Path] = []
        for root in self.roots():
            folder = "*" if run_path is None else self.of_run(run_path, root).name
            found += sorted(path for path in root.glob(f"{folder}/*{RING_SUFFIX}") if path not in HELD)
        return found

    def remove(self, run_path: str) -> None:
        """Remove locks and folders of a run without rings; only the holder of its watcher's lock may."""
        for name in (WATCHER_LOCK, SEAL_LOCK):
            (self.of_run(run_path, self.disk) / name).unlink(missing_ok=True)
        for root in self.roots():
            with contextlib.suppress(OSError):  # not empty: a new rank has come
                self.of_run(run_path, root).rmdir()


def find_places(
    environ: Mapping[str, str] | None = None, *, shared_memory: Path = SHARED_MEMORY, temporary: Path | None = None
) -> Places:
    """Return the directories, made and checked; OSError if none of our own could be made on local disk."""
    environ = os.environ if environ is None else environ
    override = environ.get("STEPSCOPE_RUNTIME_DIR", "")
    override = os.path.abspath(override) if override else ""
    name = shared_root(override, shared_memory).name
    chosen = temporary or Path(environ.get("TMPDIR") or "/tmp").absolute()  # noqa: S108 - what we make there is checked
    usual = [chosen, Path("/var/tmp")]  # noqa: S108 - likewise
    candidates = [Path(override)] if override else [folder / name for folder in usual]
    disk = _first_private(candidates)
    try:
        shared = private_directory(shared_root(override, shared_memory)) if shared_memory.is_dir() else None
    except OSError:
        shared = None  # unwritable or hostile: rings go to disk
    return Places(shared, disk)


def shared_root(override: str = "", shared_memory: Path = SHARED_MEMORY) -> Path:
    """Return the folder for rings in shared memory; `override` is the value of STEPSCOPE_RUNTIME_DIR."""
    suffix = f"-{_digest(override)}" if override else ""
    return shared_memory / f"stepscope-{os.getuid()}{suffix}"


def other_shared_roots(shared: Path) -> list[Path]:
    """Return this user's roots in shared memory but `shared`: each STEPSCOPE_RUNTIME_DIR has had its own."""
    prefix = f"stepscope-{os.getuid()}"
    try:
        names = [entry.name for entry in os.scandir(shared.parent) if entry.name.startswith(prefix)]
    except OSError:
        return []
    ours = [name for name in names if name == prefix or name.startswith(f"{prefix}-")]
    return [shared.parent / name for name in sorted(ours) if name != shared.name]


def _digest(text: str) -> str:
    """Return eight hexadecimal digits; hashlib would load OpenSSL, at 3 ms of every start."""
    return f"{zlib.crc32(os.fsencode(text)):08x}"


def _first_private(candidates: list[Path]) -> Path:
    problem = OSError("no candidate")
    for candidate in candidates:
        try:
            return private_directory(candidate)
        except OSError as error:
            problem = error
    raise problem


def private_directory(path: Path) -> Path:
    """Make `path` a directory that only this user can enter; OSError for a link, or if another user owns it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise PermissionError(f"{path} is not a directory of this user")
    if facts.st_mode & 0o077:
        path.chmod(0o700)
    return path


def choose_root(places: Places, ring_bytes: int) -> Path:
    """Return where a new ring may go: shared memory if ours take only a small part of it, else local disk."""
    if places.shared is None:
        return places.disk
    try:
        space = os.statvfs(places.shared)
        files = (path for suffix in (f"{RING_SUFFIX}*", SPILL_SUFFIX) for path in places.shared.glob(f"*/*{suffix}"))
        ours = ring_bytes + sum(path.stat().st_size for path in files)
    except OSError:  # a ring was removed while we counted
        return places.disk
    total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    return places.shared if ours <= total / 16 and ours <= free / 8 else places.disk
