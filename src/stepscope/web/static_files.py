"""The files of the built page, held in memory and looked up by name, so that no path can lead outside of it."""

from __future__ import annotations

import gzip
import mimetypes
import os
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
INDEX = "/index.html"
MAX_BYTES = 1 << 24
"""Bytes of one file."""
SMALL = 512
"""Bytes below which a file is not compressed."""
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
FOREVER = "public, max-age=31536000, immutable"
"""For files below assets/: their names contain a digest."""
NOT_BUILT = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Stepscope: the page is not built</title>
<h1>The page is not built</h1>
<p>This installation of Stepscope has no page. Run <code>make page</code> in a clone of the repository to build it;
<code>pip install .</code> does this too. The data is available: <a href="/api/runs">/api/runs</a>,
documented in <a href="/openapi.json">/openapi.json</a>.</p>
"""


@dataclass(frozen=True)
class PageFile:
    """One file of the page."""

    data: bytes
    packed: bytes | None
    """The compressed data; None if compression saves less than a tenth."""
    kind: str
    tag: str


class StaticFiles:
    """The files of a folder by path; read again when the page is built again."""

    def __init__(self, folder: Path = STATIC) -> None:
        """Serve the files of `folder`, which may be missing."""
        self._folder = folder
        self._stamp: object = None
        self._files: dict[str, PageFile] = {}

    def answer(self, path: str, accepted: str = "", known: str = "") -> Response:
        """Return the file at a path; the page itself for any path that is not a file.

        `accepted` and `known` are the headers Accept-Encoding and If-None-Match of the request.
        """
        self._read()
        name = path if path in self._files else INDEX
        file = self._files.get(name)
        if name == INDEX and "." in path.rpartition("/")[2] and path != INDEX:
            return Response(b"no such file\n", 404, media_type="text/plain")
        if file is None:
            return Response(NOT_BUILT, 200, media_type="text/html")
        headers = {"etag": file.tag, "vary": "accept-encoding"}
        headers["cache-control"] = FOREVER if path.startswith("/assets/") else "no-cache"
        if known == file.tag:
            return Response(status_code=304, headers=headers)
        if file.packed is not None and "gzip" in accepted:
            return Response(file.packed, headers={**headers, "content-encoding": "gzip"}, media_type=file.kind)
        return Response(file.data, headers=headers, media_type=file.kind)

    def _read(self) -> None:
        try:
            stamp: object = (self._folder / INDEX.strip("/")).stat().st_mtime_ns
        except OSError:
            stamp = None
        if stamp != self._stamp:
            paths = [Path(at, name) for at, _, names in os.walk(self._folder) for name in names if name[0] != "."]
            plain = [path for path in paths if not path.is_symlink() and path.stat().st_size <= MAX_BYTES]
            self._files = {f"/{path.relative_to(self._folder)}": _file(path) for path in plain}
            self._stamp = stamp


def _file(path: Path) -> PageFile:
    data = path.read_bytes()
    packed = gzip.compress(data, 9, mtime=0) if len(data) > SMALL else None
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if packed is not None and len(packed) > 0.9 * len(data):
        packed = None
    return PageFile(data, packed, kind, f'"{len(data):x}-{path.stat().st_mtime_ns:x}"')
