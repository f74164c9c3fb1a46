"""Delete folders that killed processes left in the runtime directories."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING

from stepscope.core.places import RING_SUFFIX, SEAL_LOCK, WATCHER_LOCK, Places, other_shared_roots

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

IDLE_SECONDS = 60.0
"""Age of an empty folder after which no process can still be creating a ring in it, which takes milliseconds."""
ORPHAN_SECONDS = 600.0
"""The same for companion files of a ring that does not exist."""
LOCKS = (WATCHER_LOCK, SEAL_LOCK)


def sweep_folders(places: Places, except_for: Collection[str] = (), now: float | None = None) -> None:
    """Delete the folders of runs that have neither ring nor watcher, and empty roots in shared memory.

    A process that is creating its ring in a folder just as it is deleted creates the folder again. `except_for` are the
    names of folders whose locks this process holds: opening them would release the locks (POSIX).
    """
    now = time.time() if now is None else now
    for root in places.roots():
        for name in _names(root):
            if name not in except_for:
                _sweep_run(root / name, now)
    for root in [] if places.shared is None else other_shared_roots(places.shared):
        for name in _names(root):
            _sweep_run(root / name, now)
        _remove_empty(root, now)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # deleted meanwhile, or not a folder
        return []


def _sweep_run(folder: Path, now: float) -> None:
    """Delete the folder of one run if nothing in it is still needed."""
    if not _is_ours(folder):
        return
    names = _names(folder)
    if any(RING_SUFFIX in name for name in names):
        return  # its trainer is alive, or its rows will be salvaged
    try:
        is_old = all(now - (folder / name).lstat().st_mtime > ORPHAN_SECONDS for name in names if name not in LOCKS)
        if is_old and now - folder.lstat().st_mtime > IDLE_SECONDS:
            _remove_run(folder, names)
    except OSError:
        return  # another process sweeps too, or a new rank has joined


def _remove_run(folder: Path, names: Collection[str]) -> None:
    held: list[int] = []
    try:
        for name in LOCKS:
            if name in names:
                held.append(os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))
                fcntl.lockf(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its watcher or sealer is alive
        for name in names:
            (folder / name).unlink()
        folder.rmdir()
    finally:
        for descriptor in held:
            os.close(descriptor)


def _remove_empty(root: Path, now: float) -> None:
    with contextlib.suppress(OSError):  # not empty: it is in use
        if _is_ours(root) and now - root.lstat().st_mtime > IDLE_SECONDS:
            root.rmdir()


def _is_ours(folder: Path) -> bool:
    """Return whether this is a real folder owned by this user."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
