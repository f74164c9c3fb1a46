"""Write what one rank prints into its run: in segments, within a limit of size."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

from stepscope.core.line_file import append_lines
from stepscope.store.console_segments import SEGMENT_BYTES, segment_path

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.store.console_segments import ConsoleWriterName


class SegmentWriter:
    """Appends to the newest segment of a rank, and deletes the segments between its first and its newest ones."""

    def __init__(self, folder: Path, who: ConsoleWriterName, limit: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Write below the folder of a run, at most about `limit` bytes; nothing is made yet."""
        self._folder, self._who, self._limit, self._segment_bytes = folder, who, limit, segment_bytes
        self._number = 0
        self._descriptor = -1
        self._size = 0
        self._older: deque[tuple[int, int]] = deque()
        """Number and bytes of each complete segment after the first."""
        self._first_bytes = 0

    def append(self, data: bytes) -> None:
        """Append whole lines; raises OSError, and then the segment is as it was or ends in a torn line."""
        if self._descriptor >= 0 and self._size + len(data) > self._segment_bytes:
            self._rotate()
        if self._descriptor < 0:
            self._open()
        append_lines(self._descriptor, data)
        self._size += len(data)

    def _open(self) -> None:
        path = segment_path(self._folder, self._who, self._number)
        path.parent.parent.mkdir(mode=0o700, exist_ok=True)  # fails if the run was deleted: it is not made again
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            try:
                self._descriptor = os.open(segment_path(self._folder, self._who, self._number), flags, 0o600)
            except FileExistsError:  # never another's file: no file has two writers
                self._number += 1
            else:
                return

    def _rotate(self) -> None:
        """Close the newest segment, and delete old ones as the limit wants it."""
        os.close(self._descriptor)
        self._descriptor = -1
        if self._first_bytes:
            self._older.append((self._number, self._size))
        else:
            self._first_bytes = self._size
        self._number, self._size = self._number + 1, 0
        while self._older and self._first_bytes + sum(size for _, size in self._older) > self._limit - SEGMENT_BYTES:
            number, _ = self._older.popleft()
            segment_path(self._folder, self._who, number).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the newest segment."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
