"""Zip archives of trackers: members are read within limits, and never extracted."""

from __future__ import annotations

import json
import lzma
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

from stepscope.importers.source import MOST_BYTES, MOST_DOCUMENT_BYTES, FileHead, opened, unreadable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from stepscope.importers.source import Note

MAGIC = b"PK\x03\x04"
PIECE = 2**20
"""Bytes unpacked at once."""
MOST_RATIO, ALWAYS_BYTES = 400, 64 * 2**20
"""Maximum unpacked bytes for each packed one, past the first of them; real logs reach 30."""
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, struct.error, KeyError, ValueError, IndexError),
    *(NotImplementedError, RuntimeError, OverflowError),  # methods that Python lacks, and passwords
)
"""What Python raises for a damaged archive."""


def has_members(head: FileHead, wanted: Collection[str]) -> bool:
    """Return whether a file is an archive with these members."""
    if not head.data.startswith(MAGIC):
        return False
    try:
        with zipfile.ZipFile(head.path) as archive:
            return {*wanted} <= {*archive.namelist()}
    except (OSError, *DAMAGE):
        return False


def member_lines(path: str, member: str, note: Note) -> Iterator[list[bytes]]:
    """Yield the lines of a member, many at once; what cannot be unpacked is noted."""
    rest = b""
    for piece in _pieces(path, member, note):
        complete, end, rest = (rest + piece).rpartition(b"\n")
        if end:
            yield complete.split(b"\n")
        elif len(rest) > MOST_DOCUMENT_BYTES:
            note(f"a line is longer than {MOST_DOCUMENT_BYTES >> 20} MiB: what follows is not read")
            return
    if rest:
        yield [rest]


def member_document(path: str, member: str, note: Note) -> dict[str, Any]:
    """Return the JSON object in a member; empty if it is none, which is noted."""
    data = bytearray()
    for piece in _pieces(path, member, note):
        data += piece
        if len(data) > MOST_DOCUMENT_BYTES:
            note(f"{member} is larger than {MOST_DOCUMENT_BYTES >> 20} MiB, left out")
            return {}
    return json_object(data, member, note)


def json_object(data: bytes | bytearray, name: str, note: Note) -> dict[str, Any]:
    """Return the JSON object in some bytes; empty if they hold none, which is noted."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    note(f"{name} is no JSON object, left out")
    return {}


def _pieces(path: str, member: str, note: Note) -> Iterator[bytes]:
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            about = archive.getinfo(member)
            most = min(MOST_BYTES, max(ALWAYS_BYTES, MOST_RATIO * about.compress_size))
            with archive.open(about) as stream:
                while piece := stream.read(min(PIECE, most)):
                    most -= len(piece)
                    yield piece
                if not most:
                    note(f"{member} unpacks to more than its limit: what follows is not read")
    except zipfile.BadZipFile as error:
        if "File is not a zip file" in str(error):
            raise unreadable(path, "it is no whole zip archive", "check whether it was cut") from error
        note(f"{member} is damaged ({error}): what follows is not read")
    except DAMAGE as error:
        note(f"{member} is damaged ({error}): what follows is not read")
