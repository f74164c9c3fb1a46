"""The text of a trace, piece by piece: plain or compressed, alone or in an archive, within hard limits."""

from __future__ import annotations

import os
import tarfile
import time
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Progress = Callable[[int, int], None]
    """Called with the bytes of the file read so far, and its size."""

PIECE = 1 << 22
"""Bytes of text handled at once."""
PACKED_PIECE = 1 << 17
GZIP, ZIP, ZSTD = b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
RATIO_FROM = 64 << 20
"""Bytes of text from which the compression ratio is judged."""


class BadTrace(ValueError):  # noqa: N818 - it is a bad trace
    """A text that is not a trace, is truncated, or is larger than allowed; the message says which."""


@dataclass(frozen=True)
class TraceLimits:
    """Limits for reading one trace."""

    text_bytes: int = 32 << 30
    """Bytes of text, after decompression."""
    ratio: float = 300.0
    """Maximum ratio of text to compressed bytes (traces reach 10 to 40; a bomb of zeros 1 000)."""
    value_bytes: int = 64 << 20
    """Maximum bytes of one event, or of one fact beside the events."""
    seconds: float = 1800.0
    """Maximum wall time of reading one trace."""
    events: int = 4_000_000
    """Maximum events kept; past that, short ones of the host are left out (27 bytes each, plus what analyses need)."""
    texts: int = 500_000
    """Maximum distinct names; others are called `(other)`."""


@dataclass(frozen=True)
class TraceSource:
    """One trace in a file: the file itself, or a member of an archive."""

    name: str
    stream: IO[bytes]
    size: int
    """Bytes in the file, as stored."""


def sources(path: str) -> Iterator[TraceSource]:
    """Yield the traces in a file: itself, or the `.json` and `.json.gz` members of a tar or zip archive.

    Raises:
        BadTrace: an archive is broken.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(4)
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        if head.startswith(ZIP):
            yield from _zipped(path, file)
        elif path.endswith((".tar", ".tar.gz", ".tgz")):
            yield from _packed(path, file)
        elif head.startswith(ZSTD):
            raise BadTrace("it is compressed by zstd, which this Python cannot read; decompress it with `zstd -d`")
        else:
            yield TraceSource(path, file, size)


def _wanted(name: str) -> bool:
    base = os.path.basename(name)
    return base.endswith((".json", ".json.gz")) and not base.startswith(".")


def _packed(path: str, file: IO[bytes]) -> Iterator[TraceSource]:
    try:
        with tarfile.open(fileobj=file, mode="r|*") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isreg() and _wanted(member.name) else None
                if stream is not None:
                    yield TraceSource(f"{path}:{member.name}", stream, member.size)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise BadTrace(f"the archive is broken ({error})") from error


def _zipped(path: str, file: IO[bytes]) -> Iterator[TraceSource]:
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if _wanted(member.filename):
                    if member.file_size > RATIO_FROM and member.file_size > TraceLimits.ratio * member.compress_size:
                        raise BadTrace("a member of the archive expands like a bomb")
                    with archive.open(member) as stream:
                        yield TraceSource(f"{path}:{member.filename}", stream, member.file_size)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise BadTrace(f"the archive is broken ({error})") from error


def pieces(source: TraceSource, limits: TraceLimits, progress: Progress | None = None) -> Iterator[bytes]:
    """Yield the text of a trace in order, decompressed.

    Raises:
        BadTrace: it is cut off, broken, or beyond a limit.
    """
    head = source.stream.read(max(2, PACKED_PIECE))
    gzipped = head.startswith(GZIP)
    deadline = time.monotonic() + limits.seconds
    read = written = 0
    for taken, piece in _inflated(head, source.stream) if gzipped else _plain(head, source.stream):
        read, written = read + taken, written + len(piece)
        if written > limits.text_bytes:
            raise BadTrace(f"its text is larger than {limits.text_bytes:,} bytes, the most that is read")
        if gzipped and written > RATIO_FROM and written > limits.ratio * read:
            raise BadTrace(f"it expands more than {limits.ratio:.0f} times, as a bomb does")
        if time.monotonic() > deadline:
            raise BadTrace(f"reading took longer than {limits.seconds:.0f} s, the most that is allowed")
        if progress is not None:
            progress(read, source.size)
        if piece:
            yield piece


def _plain(head: bytes, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (bytes read, text)."""
    piece = head + stream.read(PIECE)
    while piece:
        yield len(piece), piece
        piece = stream.read(PIECE)


def _inflated(head: bytes, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (bytes read, text) of gzip members, one after the other; padding after the last is skipped."""
    packed, fresh = head, len(head)
    while packed.startswith(GZIP):
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            try:
                text = member.decompress(packed, PIECE)
            except zlib.error as error:
                raise BadTrace(f"its compression is broken ({error})") from error
            yield fresh, text
            fresh, packed = 0, member.unconsumed_tail
            if not packed and not member.eof:
                packed = stream.read(PACKED_PIECE)
                fresh = len(packed)
                if not packed and not text:
                    raise BadTrace("it is cut off in the middle of its compressed data")
        packed = member.unused_data or stream.read(PACKED_PIECE)
        fresh = 0 if member.unused_data else len(packed)
