"""Where this user's runs are: each folder that runs were recorded in, noted so that they are found from anywhere.

One small file for each folder, written anew by the watcher of each run: no file has two readings, none is locked.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.places import find_places, private_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUFFIX = ".root"
MOST = 200
"""Folders that are known; of more, those that were used last."""
FORGOTTEN = 30 * 86400.0
"""Seconds after which a folder that is gone is forgotten; a disk may only be away."""
LONGEST = 4096
"""Bytes of a path."""
PATIENCE = 1.0
"""Seconds that a folder may take to answer: some lie on servers that are gone."""


class KnownRoot(NamedTuple):
    """A folder that runs were recorded in."""

    path: Path
    used: float
    """When a run last began there, seconds since 1970 UTC."""
    note: Path
    """The file that says so."""


def place(environ: Mapping[str, str] | None = None) -> Path:
    """Return the private folder of the notes: in the user's state, beside the rings where that was moved or is absent.

    Raises:
        OSError: there is none, and none can be made.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("HOME", "")
    state = environ.get("XDG_STATE_HOME", "") or (os.path.join(home, ".local", "state") if home else "")
    if not environ.get("STEPSCOPE_RUNTIME_DIR") and os.path.isabs(state):
        try:
            return private_directory(Path(state, "stepscope", "roots"))
        except OSError:  # a home that is not ours, or read-only
            return private_directory(find_places(environ).disk / "roots")
    return private_directory(find_places(environ).disk / "roots")


def note_root(root: Path, environ: Mapping[str, str] | None = None) -> str:
    """Note that runs are recorded in a folder; return why that could not be done, empty if it was."""
    try:
        folder = place(environ)
        text = os.fsencode(root.absolute())
        file = folder / f"{zlib.crc32(text):08x}{SUFFIX}"
        new = file.with_name(f".{file.name}.{os.getpid()}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as out:
            out.write(text)
        os.replace(new, file)
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
    """Return the folders that can be read now; a file system that does not answer within `seconds` counts as away."""
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
    """Return the folders that were noted, the one used last first; what is no note of ours is left out."""
    found = []
    try:
        with os.scandir(place(environ)) as entries:
            for entry in entries:
                facts = entry.stat(follow_symlinks=False)
                if entry.name.endswith(SUFFIX) and not entry.name.startswith(".") and facts.st_uid == os.getuid():
                    path = _read(entry.path)
                    found += [] if path is None else [KnownRoot(path, facts.st_mtime, Path(entry.path))]
    except OSError:  # no place of our own: nothing is known
        return []
    return sorted(found, key=lambda root: root.used, reverse=True)


def _read(file: str) -> Path | None:
    """Return the folder that a note names; None if it is damaged."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as source:
            text = source.read(LONGEST + 1)
    except OSError:  # gone since, or no file
        return None
    is_path = text.startswith(b"/") and b"\0" not in text and len(text) <= LONGEST
    return Path(os.fsdecode(text)) if is_path else None
