"""Trackio's folder, and the inbox in it where we leave records for Trackio to import."""

from __future__ import annotations

import contextlib
import errno
import os
import string
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.exporters.sinks.sink import SinkDeniesError, SinkDownError, SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INBOX = "inbox"
PENDING = ".tmp"
"""The end of the name of a file that is not complete; Trackio imports only *.jsonl."""
TRIES = 3
"""Trackio removes a folder that it has emptied, at times just before we write there."""
_DENIED = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
)
_CANNOT_SYNC = frozenset((errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES))


def default_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder in which Trackio keeps its data under this environment."""
    given = environ.get("TRACKIO_DIR")
    if given:
        return Path(given)
    home = environ.get("HOME") or str(Path.home())
    cache = environ.get("XDG_CACHE_HOME", os.path.join(home, ".cache"))
    hugging_face = environ.get("HF_HOME", os.path.join(cache, "huggingface"))
    if hugging_face == "~" or hugging_face.startswith("~/"):
        hugging_face = home + hugging_face[1:]
    return Path(string.Template(hugging_face).safe_substitute(environ)) / "trackio"


def problem_of(folder: Path) -> str:
    """Return why nothing can be written to a folder, or to one that would be made there; empty if it can."""
    found = next(place for place in (folder, *folder.parents) if place.exists() or place == place.parent)
    if not found.is_dir():
        return f"{found} is no folder"
    return "" if os.access(found, os.W_OK | os.X_OK) else f"{found} cannot be written by this user"


class TrackioInbox:
    """Where one writer leaves files of JSON lines. Trackio reads each file, stores its records, and deletes it.

    A file is complete when it appears. Its name is a number that only grows and is never used twice: an importer
    deletes by name after it has read, and would delete a second file of that name unread.
    """

    def __init__(self, folder: Path, writer: str, clock_ns: Callable[[], int] = time.time_ns) -> None:
        """Write nothing yet; `folder` is Trackio's, `writer` names our folder in its inbox."""
        self._folder = folder / INBOX / writer
        self._clock_ns = clock_ns
        self._last = 0

    def resume(self) -> None:
        """Delete what a killed process left half written, and continue behind its numbers."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _error_of(error, self._folder) from None
        for name in names:
            stem = name.partition(".")[0]
            if name.endswith(".jsonl") and stem.isdecimal():
                self._last = max(self._last, int(stem))
            elif name.endswith(PENDING):
                with contextlib.suppress(OSError):  # it stays, and does no harm
                    (self._folder / name).unlink()

    def write(self, data: bytes) -> None:
        """Leave a file with these lines; SinkError if there is none afterwards."""
        for attempt in range(TRIES):
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._place(data)
            except OSError as error:
                if not isinstance(error, FileNotFoundError) or attempt == TRIES - 1:
                    raise _error_of(error, self._folder) from None
            else:
                break

    def _place(self, data: bytes) -> None:
        self._last = max(self._last + 1, self._clock_ns())
        path = self._folder / f"{self._last:08d}.jsonl"
        pending = path.with_name(f".{path.stem}{PENDING}")
        try:
            with pending.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            pending.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):  # nothing was written, or nothing can be deleted
                pending.unlink()
            raise
        _sync(self._folder)


def _sync(folder: Path) -> None:
    """Make a new name in a folder survive a power failure, where the file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return  # Trackio has imported the file already, and has removed the folder
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def _error_of(error: OSError, folder: Path) -> SinkError:
    """Return what an error of the file system means for the rows: wait, or wait for a person."""
    text = f"{folder} cannot be written: {error.strerror or type(error).__name__}"
    return SinkDeniesError(text) if error.errno in _DENIED else SinkDownError(text)
