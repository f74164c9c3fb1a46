"""Append rows to rotated files of JSON lines; a row is on disk when `write` returns.

`<stem>_YYYYMMDD_HHMMSS.jsonl` (UTC). A file is created exclusively with its first line: of two writers in one
second the later gets `…_1.jsonl`. Each call of `write` is one system call, so its rows survive the death of the
process. A new file begins when the current one is large or old enough, and a writer removes its own oldest files
beyond the number to keep.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError
from stepscope.exporters.files.monitor_rows import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ATTEMPTS = 1000
"""Names that are tried within one second."""


@dataclass(frozen=True)
class Rotation:
    """When a new file begins, and how many are kept."""

    max_bytes: int = 64 << 20
    """Maximum size of a file in bytes, exceeded only by a single larger write; 0: no limit."""
    max_seconds: float = 86_400.0
    """Maximum age of a file in seconds, from its first line; 0: no limit."""
    keep: int = 0
    """Files of this writer that are kept, including the current one; 0: all of them."""


class JsonLines:
    """Writes rows of one kind to files in one folder. For one thread; a forked child gets its own files."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        stem: str,
        rotation: Rotation | None = None,
        *,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare; neither folder nor file is made before the first row. `now` returns nanoseconds since 1970."""
        self.folder = Path(folder)
        self.stem = stem
        self.path: Path | None = None
        """The current file; None before the first row."""
        self.lines, self.lost = 0, 0
        """Rows that were written, and rows that could not be."""
        self._rotation, self._now = rotation or Rotation(), now
        self._file = -1
        self._owner = os.getpid()
        self._size, self._born, self._torn = 0, 0, False
        self._kept: deque[Path] = deque()

    def write(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows, all in one system call.

        Raises:
            StepscopeError: the folder or file cannot be written; the rows count as lost.
        """
        if not rows:
            return
        data = b"".join(encode(row) for row in rows)
        try:
            self._make_ready(len(data))
            self._append(data)
        except OSError as error:
            self.lost += len(rows)
            what, remedy = f"write {self.stem} to {self.folder}", "make room or access there, or choose another folder"
            raise StepscopeError(what, error.strerror or error, remedy) from error
        self.lines += len(rows)

    def close(self) -> None:
        """Sync and close the file; a later row begins a new one."""
        descriptor, self._file = self._file, -1
        if descriptor < 0 or self._owner != os.getpid():
            return
        try:
            with contextlib.suppress(OSError):  # a file system that cannot sync still has the lines
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _make_ready(self, size: int) -> None:
        """Open a file of this process with room for `size` bytes."""
        if self._owner != os.getpid():  # a fork: the parent keeps its file
            self._file, self._owner = -1, os.getpid()
            self._kept.clear()
        before, rule = self._file, self._rotation
        is_large = rule.max_bytes and self._size > 0 and self._size + size > rule.max_bytes
        is_old = rule.max_seconds > 0 and self._now() - self._born >= rule.max_seconds * 1e9
        if before < 0 or is_large or is_old:
            self._begin()  # if it fails, the old file stays the current one
            if before >= 0:
                os.close(before)

    def _begin(self) -> None:
        """Make the next file and remove the oldest beyond the number to keep."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = self._now()
        name = f"{self.stem}_{datetime.fromtimestamp(now // 1_000_000_000, timezone.utc):%Y%m%d_%H%M%S}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        for number in range(ATTEMPTS):
            path = self.folder / f"{name}{f'_{number}' if number else ''}.jsonl"
            try:
                self._file = os.open(path, flags, 0o600)
            except FileExistsError:
                continue  # another run, or our own file of this second
            self.path, self._size, self._born, self._torn = path, 0, now, False
            self._kept.append(path)
            break
        else:
            raise FileExistsError(17, f"{ATTEMPTS} files of this second exist", str(self.folder))
        while self._rotation.keep and len(self._kept) > self._rotation.keep:
            self._kept.popleft().unlink(missing_ok=True)

    def _append(self, data: bytes) -> None:
        """Write all of the data; a line torn by a full disk is ended first, so that the next one is whole."""
        if self._torn:
            data = b"\n" + data
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
        finally:
            self._size += done
            self._torn = (self._torn and not done) or (0 < done < len(data) and data[done - 1 : done] != b"\n")
