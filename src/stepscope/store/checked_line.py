"""Lines of JSON with a checksum first, for files that are only appended to."""

from __future__ import annotations

import json
import re
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKED = re.compile(rb'(?s).{9}([0-9a-f]{8}).{3}"time": ')
"""Start of a line with a checksum, `{"crc": "89abcdef", "time": `; damage to these bytes costs nothing. Older lines
have no checksum."""
HEAD = len('{"crc": "89abcdef", ')


def encode_line(fields: Mapping[str, Any]) -> bytes:
    """Return the line of an object whose field `time`, in microseconds since 1970, comes first."""
    body = json.dumps({"time": fields["time"], **fields})[1:].encode()
    return b'{"crc": "%08x", %s\n' % (zlib.crc32(body), body)


def decode_line(line: bytes) -> Any:
    """Return what a line holds, without its checksum; raise ValueError if it is damaged."""
    checked = CHECKED.match(line)
    if checked and zlib.crc32(line[HEAD:]) != int(checked[1], 16):
        raise ValueError("its checksum is wrong")
    found = json.loads(b"{" + line[HEAD:] if checked else line, parse_constant=str)
    if not checked and next(iter(found), "") == "crc":
        raise ValueError("its checksum cannot be read")
    return found
