"""Remember every folder in which this user recorded runs, so that they can be found from anywhere.

Each folder has one small file, which the watcher of each run rewrites. The files need no lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.places import find_places, private_directory
from stepscope.store.layout import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUFFIX = ".root"
MOST = 200
"""Maximum folders remembered, most recently used first."""
FORGOTTEN = 30 * 86400.0
"""Seconds after which a missing folder is forgotten; its disk may only be unmounted."""
LONGEST = 4096
"""Maximum bytes of a path."""
PATIENCE = 1.0
"""Seconds to wait for a folder: some are on servers that are gone."""


class KnownRoot(NamedTuple):
    """A folder in which runs were recorded."""

    path: Path
    used: float
    """Start of the last run there, in seconds since 1970 UTC."""
    note: Path
    """The file that records it."""


def place(environ: Mapping[str, str] | None = None) -> Path:
    """Return the private folder of these files: in the user's state folder, or beside the rings if that is not usable.

    Raises OSError if there is none and none can be created.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("HOME", "")
    state = environ.get("XDG_STATE_HOME", "") or (os.path.join(home, ".local", "state") if home else "")
    if not environ.get("STEPSCOPE_RUNTIME_DIR") and os.path.isabs(state):
        with contextlib.suppress(OSError):  # the home is not ours, or is read-only
            return private_directory(Path(state, "stepscope", "roots"))
    return private_directory(find_places(environ).disk / "roots")


def note_root(root: Path, environ: Mapping[str, str] | None = None) -> str:
    """Remember that runs are recorded in a folder; return why that failed, or an empty text."""
    try:
        folder = place(environ)
        text = os.fsencode(root.absolute())
        replace(folder / f"{zlib.crc32(text):08x}{SUFFIX}", text)
        _forget(known_roots(environ), time.time() - FORGOTTEN)
    except OSError as error:
        return str(error)
    return ""


def _forget(roots: list[KnownRoot], before: float) -> None:
    old = [root for root in roots[:MOST] if root.used < before]
    there = reachable([root.path for root in old])
    for root in [*roots[MOST:], *(root for root in old if root.path not in there)]:
        root.note.unlink(missing_ok=True)


def reachable(paths: Sequence[Path], seconds: float = PATIENCE) -> list[Path]:
    """Return the folders that can be read now; a file system that does not answer in `seconds` counts as missing."""
    answers: dict[Path, bool] = {}

    def look(path: Path) -> None:
        answers[path] = path.is_dir() and os.access(path, os.R_OK | os.X_OK)

    threads = [threading.Thread(target=look, args=(path,), daemon=True) for path in paths]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [path for path in paths if answers.get(path)]


def known_roots(environ: Mapping[str, str] | None = None) -> list[KnownRoot]:
    """Return the remembered folders, most recently used first, without damaged entries."""
    found = []
    try:
        with os.scandir(place(environ)) as entries:
            for entry in entries:
                facts = entry.stat(follow_symlinks=False)
                if entry.name.endswith(SUFFIX) and not entry.name.startswith(".") and facts.st_uid == os.getuid():
                    path = _read(entry.path)
                    found += [] if path is None else [KnownRoot(path, facts.st_mtime, Path(entry.path))]
    except OSError:  # no private folder: nothing is remembered
        return []
    return sorted(found, key=lambda root: root.used, reverse=True)


def _read(file: str) -> Path | None:
    """Return the folder that a file names; None if the file is damaged."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as source:
            text = source.read(LONGEST + 1)
    except OSError:  # deleted since, or not a file
        return None
    is_path = text.startswith(b"/") and b"\0" not in text and len(text) <= LONGEST
    return Path(os.fsdecode(text)) if is_path else None
