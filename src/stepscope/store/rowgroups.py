"""Join Parquet files by their row groups: the data bytes are copied unchanged, only the footer is new."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from stepscope.store import footer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stepscope.store.sealed import Disk

_CHUNK = 1 << 20


class Joined:
    """A Parquet file that grows by the row groups of others, which must have the same columns."""

    def __init__(self, target: int, disk: Disk) -> None:
        self._target, self._disk = target, disk
        self._template: footer.Footer | None = None
        self._entries: list[bytes] = []
        self._end = 0
        self.rows = 0

    def append(self, piece: Path) -> None:
        """Add the row groups of a file; raise FooterError if it is not a Parquet file, or has other columns."""
        source = os.open(piece, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(source).st_size
            start, length = footer.locate(size, os.pread(source, footer.TAIL_BYTES, max(0, size - footer.TAIL_BYTES)))
            found = footer.parse(os.pread(source, length, start))
            if self._entries and found.groups and not footer.same_columns(found, self._template or found):
                raise footer.FooterError("cannot join Parquet files: their columns differ")
            if not self._entries:
                self._template = found
            self._copy(source, found, start)
        finally:
            os.close(source)

    def _copy(self, source: int, found: footer.Footer, end: int) -> None:
        if not found.groups:
            return
        if not self._end:
            self._write(footer.MAGIC)
        first = found.groups[0].offset
        shift = self._end - first
        self._entries += [footer.moved(found, group, shift) for group in found.groups]
        self.rows += found.rows
        while first < end:
            data = os.pread(source, min(_CHUNK, end - first), first)
            if not data:
                raise footer.FooterError("cannot join Parquet files: one ends too early")
            self._write(data)
            first += len(data)

    def _write(self, data: bytes) -> None:
        self._end += len(data)
        while data:
            data = data[self._disk.write(self._target, data) :]

    def finish(self) -> None:
        """Write the footer, if anything was appended."""
        if self._template is None:
            return
        if not self._end:
            self._write(footer.MAGIC)
        end = footer.with_row_groups(self._template, self._entries, self.rows)
        self._write(end + footer.tail(end))


@contextlib.contextmanager
def joining(path: Path, disk: Disk) -> Iterator[Joined]:
    """Open an existing empty file; finish it if the block succeeds, and close it in any case."""
    descriptor = disk.open(path, os.O_WRONLY)
    try:
        joined = Joined(descriptor, disk)
        yield joined
        joined.finish()
    finally:
        disk.close(descriptor)
