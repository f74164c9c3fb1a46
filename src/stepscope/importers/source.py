"""A foreign file, read within limits: its first bytes, its lines, or its JSON document.

The file may be broken or hostile: only regular files are opened, gzip is unpacked on the way and its unpacked size
counts, and nothing is read past a limit. Truncation is always reported.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zlib
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Note = Callable[[str], None]

HEAD_BYTES = 2**20
"""Number of first bytes used to detect the format: a log may start with the program's whole source."""
MOST_BYTES = 2 * 2**30
"""Maximum bytes read of one file, unpacked."""
MOST_DOCUMENT_BYTES = 64 * 2**20
"""Maximum bytes of a JSON document that is decoded at once: some 250 000 rows of a trainer's log."""
MOST_LINE_BYTES = 2**20
"""Maximum bytes of a line; longer ones are left out."""
GZIP = b"\x1f\x8b"
BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)
"""Exceptions raised for truncated or damaged compressed data."""
AT_END: ContextVar[Callable[[], bool]] = ContextVar("AT_END")
"""What a reader asks at the end of its source; only set while a live run is followed. See `goes_on`."""
HELD_BACK: ContextVar[list[Callable[[], None]]] = ContextVar("HELD_BACK")
"""What is called before anything is handed over; only set while a live run is followed. See `at_end`."""


def goes_on() -> bool:
    """Return whether a source that was read to its end may have more by now: never, unless it is being followed.

    A reader takes in everything complete before it asks. While a live run is followed, the question hands over what was
    read so far and waits for more.
    """
    ask = AT_END.get(None)
    return ask is not None and ask()


def at_end(add: Callable[[], None]) -> None:
    """Have `add` called whenever a followed source was read to its end, to add rows that a reader holds back so far.

    A reader that looks at many rows before it adds the first one needs this: a live source may stay short for hours.
    """
    held_back = HELD_BACK.get(None)
    if held_back is not None:
        held_back.append(add)


@dataclass(frozen=True)
class FileHead:
    """The start of a file, enough to detect its format."""

    path: str
    data: bytes
    """Its first `HEAD_BYTES` bytes, unpacked."""

    @cached_property
    def text(self) -> str:
        """Its first bytes as text; invalid UTF-8 is replaced."""
        return self.data.decode("utf-8", "replace")

    def first_lines(self, count: int) -> list[str]:
        """Return its first non-blank lines as text, without a line that the head cuts."""
        whole = self.data if len(self.data) < HEAD_BYTES else self.data[: self.data.rfind(b"\n") + 1]
        begun = whole[: 64 * 1024].decode("utf-8-sig", "replace")
        return [line for line in begun.splitlines() if line.strip()][:count]


def unreadable(path: str, cause: object, remedy: str = "check the file") -> StepscopeError:
    """Return the error for a file that cannot be read."""
    return StepscopeError(f"read {path!r}", cause, remedy)


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a regular file for reading, unpacked if it is gzip; a system error names the file."""
    try:
        # O_NONBLOCK: a named pipe must not block us before we have seen what it is.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise unreadable(path, "it is not a regular file", "give a file or a folder")
            packed = file.peek(2)[:2] == GZIP
            yield cast("BinaryIO", gzip.GzipFile(fileobj=file)) if packed else file
    except OSError as error:
        raise unreadable(path, error.strerror or error, "check the path and its permissions") from error


def head(path: str) -> FileHead:
    """Return the start of a file; of a damaged gzip file as much as can be unpacked."""
    return FileHead(path, _first(path, HEAD_BYTES))


def _first(path: str, size: int) -> bytes:
    data = bytearray()
    for piece in chunks(path, lambda _: None, whole=True):
        data += piece
        if len(data) >= size:
            break
    return bytes(data[:size])


def chunks(path: str, note: Note, size: int = 2**16, *, whole: bool = False) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces of `size`, the last one shorter, up to `MOST_BYTES`.

    A file that is followed goes on after its end, unless it is taken as a `whole`, as it is now.
    """
    left = MOST_BYTES
    with opened(path) as stream:
        while left > 0:
            try:
                piece = stream.read(min(size, left))
            except BROKEN as error:
                note(f"the packed file is damaged ({error}): what follows is not read")
                return
            if not piece and (whole or not goes_on()):
                return
            left -= len(piece)
            if piece:
                yield piece
    note(f"the file is larger than {MOST_BYTES >> 30} GiB: what follows is not read")


def lines(path: str, note: Note) -> Iterator[str]:
    """Yield the lines of a text file without their ends; a lone carriage return, as of a progress bar, ends one too."""
    rest = b""
    for piece in chunks(path, note):
        first, *others = piece.split(b"\n")
        rest += first
        if others:
            yield from _decoded([rest, *others[:-1]], note)
            rest = others[-1]
        elif len(rest) > 2 * MOST_LINE_BYTES:
            rest = rest[: MOST_LINE_BYTES + 1]  # enough to know that it is too long
    if rest:
        yield from _decoded([rest], note)


def _decoded(found: list[bytes], note: Note) -> Iterator[str]:
    for line in found:
        if len(line) > MOST_LINE_BYTES:
            note(f"lines longer than {MOST_LINE_BYTES >> 20} MiB, left out")
        else:
            yield from line.decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r").split("\r")


def document(path: str) -> Any:
    """Return the JSON document in a file."""
    data = _first(path, MOST_DOCUMENT_BYTES + 1)
    if len(data) > MOST_DOCUMENT_BYTES:
        cause = f"the JSON document is larger than {MOST_DOCUMENT_BYTES >> 20} MiB"
        raise unreadable(path, cause, "split it, or give its source instead")
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise unreadable(path, f"it is no whole JSON document: {error}", "check whether it was cut") from error


def json_value(text: str) -> Any:
    """Return the value of a JSON text, or None if it is invalid; NaN and Infinity are numbers."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def size_of(path: str) -> int:
    """Return the bytes on disk of a file, or of the files in a folder; 0 if it is gone."""
    if not os.path.isdir(path):
        with suppress(OSError):
            return os.stat(path).st_size
        return 0
    return sum(size_of(os.path.join(place, name)) for place, _, names in os.walk(path) for name in names[:10_000])
