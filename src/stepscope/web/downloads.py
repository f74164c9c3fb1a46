"""Downloads: a thread writes into a pipe and the response reads from it, so a large run needs no memory or disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from starlette.responses import StreamingResponse

from stepscope.core.errors import UsageError
from stepscope.web.failures import NotFoundError, TooBusyError
from stepscope.web.responses import encoded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from stepscope.exporters.files.selection import ExportedMetric
    from stepscope.store.reader import Past
    from stepscope.web.parameters import ExportParameters
    from stepscope.web.site import Site

AT_ONCE = 2
"""Downloads that may run at the same time."""
CHUNK = 1 << 16
KINDS = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
    "html": "text/html; charset=utf-8",
}
_FREE = threading.BoundedSemaphore(AT_ONCE)


class Download(StreamingResponse):
    """The response with a download; another may begin at its end, even if the client left before the first byte."""

    def __init__(self, name: str, kind: str, write: Callable[[BinaryIO], None]) -> None:
        """Respond with the bytes that `write` writes, as a file called `name`."""
        self._content, self._is_started = self._chunks(write), False
        disposition = {"content-disposition": f'attachment; filename="{name}"'}
        super().__init__(self._content, media_type=kind, headers=disposition)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._content.aclose()
            if not self._is_started:
                _FREE.release()

    async def _chunks(self, write: Callable[[BinaryIO], None]) -> AsyncGenerator[bytes, None]:
        """Yield what a thread writes; when the client leaves, the next write fails and the thread ends."""
        reading, writing = os.pipe()
        failed: list[BaseException] = []

        def work() -> None:
            try:
                with open(writing, "wb", buffering=CHUNK) as stream:
                    write(stream)
            except BrokenPipeError:
                return  # the client left
            except Exception as error:  # noqa: BLE001 - raised below: a broken download must not look complete
                failed.append(error)
            finally:
                _FREE.release()

        self._is_started = True
        threading.Thread(target=work, name="stepscope-export", daemon=True).start()
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader(limit=CHUNK)
        pipe = os.fdopen(reading, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        try:
            while data := await stream.read(CHUNK):
                yield data
            if failed:
                raise failed[0]
        finally:
            with contextlib.suppress(OSError):
                transport.close()


async def download(site: Site, parameters: ExportParameters, _request: Request) -> Download:
    """Return the response with a download. Raises TooBusyError, NotFoundError or StepscopeError."""
    path = site.folder(parameters.run)
    if not _FREE.acquire(blocking=False):
        raise TooBusyError
    try:
        past, metrics = await asyncio.get_running_loop().run_in_executor(None, _select, path, parameters.name)
    except BaseException:
        _FREE.release()
        raise
    name = f"{re.sub(r'[^A-Za-z0-9._-]+', '_', past.id)[:80]}.{parameters.format}"
    return Download(name, KINDS[parameters.format], _writer(past, metrics, parameters.format))


def _select(path: Path, names: Sequence[str] | None) -> tuple[Past, Sequence[ExportedMetric]]:
    from stepscope.exporters.files.selection import choose
    from stepscope.store.layout import RunFolder
    from stepscope.store.reader import Past

    past = Past(RunFolder(path))
    try:
        return past, choose(past, list(names) if names else None, "recorded")
    except UsageError as error:
        raise NotFoundError(f"{error.cause}; {error.remedy}") from None


def _writer(past: Past, metrics: Sequence[ExportedMetric], form: str) -> Callable[[BinaryIO], None]:

    def write(stream: BinaryIO) -> None:
        from stepscope.exporters.formats import FORMATS, STREAM
        from stepscope.reports.report_file import html_of
        from stepscope.views.report import report

        if form == "html":
            stream.write(html_of([past], report(past)).encode("utf-8", "replace"))
        elif form == "json":
            _write_json(past, metrics, stream)
        elif FORMATS[form].target == STREAM:
            FORMATS[form].write(past, metrics, stream)
        else:
            with tempfile.TemporaryDirectory(prefix="stepscope-") as folder:
                target = Path(folder) / "export"
                FORMATS[form].write(past, metrics, target)
                with target.open("rb") as file:
                    shutil.copyfileobj(file, stream, CHUNK)

    return write


def _write_json(past: Past, metrics: Sequence[ExportedMetric], stream: BinaryIO) -> None:
    """Write the run and every point of its metrics as one JSON object, one metric at a time."""
    from stepscope.core.ring import NO_STEP
    from stepscope.views.overview import identity

    stream.write(b'{"run":' + encoded(identity(past)) + b',"metrics":{')
    for number, metric in enumerate(metrics):
        series = past.series(metric.recorded)
        columns: dict[str, Any] = {
            "step": [None if step == NO_STEP else step for step in series.step.tolist()],
            "time": series.time.tolist(),
            "value": series.value.tolist(),
            "rank": series.rank.tolist(),
            "attempt": series.attempt.tolist(),
        }
        stream.write((b"," if number else b"") + encoded(metric.written) + b":" + encoded(columns))
    stream.write(b"}}\n")
