"""The built page: its files, read into memory and looked up by name, so that no path can lead anywhere else."""

from __future__ import annotations

import gzip
import mimetypes
import os
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
INDEX = "/index.html"
MOST_BYTES = 1 << 24
"""Bytes of one file."""
SMALL = 512
"""Bytes below which nothing is compressed."""
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
FOREVER = "public, max-age=31536000, immutable"
"""A file below assets/ has a digest in its name."""
NOT_BUILT = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Stepscope: the page is not built</title>
<h1>The page is not built</h1>
<p>This installation of Stepscope has no page. In a copy of its repository, <code>make page</code> builds it;
<code>pip install .</code> does so by itself. The data is served already:
<a href="/api/runs">/api/runs</a>, described by <a href="/openapi.json">/openapi.json</a>.</p>
"""


@dataclass(frozen=True)
class File:
    """One file of the page."""

    data: bytes
    packed: bytes | None
    """Compressed, where that is worth it."""
    kind: str
    tag: str


class StaticFiles:
    """The files of a folder by their paths in it; read anew when the page is built anew."""

    def __init__(self, folder: Path = STATIC) -> None:
        """Take the files of `folder`, if there is one."""
        self._folder = folder
        self._stamp: object = None
        self._files: dict[str, File] = {}

    def answer(self, path: str, accepted: str = "", known: str = "") -> Response:
        """Return the file at a path; the page itself at any path that names no file.

        Args:
            path: of the request.
            accepted: its Accept-Encoding.
            known: its If-None-Match.
        """
        self._read()
        name = path if path in self._files else INDEX
        file = self._files.get(name)
        if name == INDEX and "." in path.rpartition("/")[2] and path != INDEX:
            return Response(b"there is no such file\n", 404, media_type="text/plain")
        if file is None:
            return Response(NOT_BUILT, 200, media_type="text/html")
        headers = {"etag": file.tag, "vary": "accept-encoding"}
        headers["cache-control"] = FOREVER if path.startswith("/assets/") else "no-cache"
        if known == file.tag:
            return Response(status_code=304, headers=headers)
        if file.packed is not None and "gzip" in accepted:
            return Response(file.packed, headers={**headers, "content-encoding": "gzip"}, media_type=file.kind)
        return Response(file.data, headers=headers, media_type=file.kind)

    @property
    def is_built(self) -> bool:
        """Whether there is a page."""
        self._read()
        return INDEX in self._files

    def _read(self) -> None:
        index = self._folder / INDEX.strip("/")
        try:
            stamp: object = index.stat().st_mtime_ns
        except OSError:
            stamp = None
        if stamp != self._stamp:
            self._files = {f"/{path.relative_to(self._folder)}": _file(path) for path in _plain_files(self._folder)}
            self._stamp = stamp


def _plain_files(folder: Path) -> list[Path]:
    found = []
    for place, _, names in os.walk(folder):
        found += [Path(place) / name for name in names if not name.startswith(".")]
    return [path for path in found if not path.is_symlink() and path.stat().st_size <= MOST_BYTES]


def _file(path: Path) -> File:
    data = path.read_bytes()
    packed = gzip.compress(data, 9, mtime=0) if len(data) > SMALL else None
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    if packed is not None and len(packed) > 0.9 * len(data):
        packed = None
    return File(data, packed, kind, f'"{len(data):x}-{path.stat().st_mtime_ns:x}"')
