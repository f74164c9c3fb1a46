"""Text files of a run that may still grow: their complete lines past a position."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError
from stepscope.importers.source import BROKEN, MOST_BYTES, MOST_LINE_BYTES, opened, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.importers.source import Note

PIECE = 2**20
"""Bytes read at once."""


def start_of(path: str, size: int = PIECE) -> bytes:
    """Return the first bytes of a file; none if it cannot be read."""
    try:
        with opened(path) as stream:
            return stream.read(size)
    except (StepscopeError, *BROKEN):
        return b""


class GrowingFile:
    """A file and how far it was read."""

    def __init__(self, path: str, most_line: int = MOST_LINE_BYTES) -> None:
        self.path, self.most_line = path, most_line
        self.position = 0
        """Bytes read so far: complete lines only."""
        self.size = 0

    def new_lines(self, note: Note) -> Iterator[list[bytes]]:
        """Yield complete lines that were not read yet, many at once; of a file that became shorter, all."""
        try:
            size = os.path.getsize(self.path)
        except OSError as error:
            raise unreadable(self.path, error.strerror or error, "check the path and its permissions") from error
        if size == self.size:
            return
        if size < self.position:
            self.position = 0
        self.size = size
        with opened(self.path) as stream:
            stream.seek(self.position)
            rest = b""
            while self.position < MOST_BYTES:
                try:
                    piece = stream.read(PIECE)
                except BROKEN as error:
                    note(f"the packed file is damaged ({error}): what follows is not read")
                    return
                if not piece:
                    return
                complete, end, rest = (rest + piece).rpartition(b"\n")
                if end:
                    self.position += len(complete) + 1
                    yield complete.split(b"\n")
                elif len(rest) > self.most_line:
                    note(f"a line is longer than {self.most_line >> 20} MiB: what follows is not read")
                    return
        note(f"the file is larger than {MOST_BYTES >> 30} GiB: what follows is not read")

    @property
    def is_cut(self) -> bool:
        """Whether something follows the last complete line."""
        return self.position < self.size
