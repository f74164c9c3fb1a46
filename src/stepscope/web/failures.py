"""Errors that the server expects, and the responses to them: a status and a sentence without paths of this machine."""

from __future__ import annotations

import asyncio
import os

import msgspec
from starlette.responses import Response

from stepscope.core.errors import StepscopeError, UsageError

_SLOW = "cannot respond in time: the disk or the query is too slow; ask for less"


class InvalidRequestError(Exception):
    """The parameters do not fit the route."""


class NotFoundError(Exception):
    """There is no such run, metric or part."""


class CursorExpiredError(Exception):
    """The server no longer has the frames after this cursor: start over."""


class DiskStalledError(Exception):
    """The disk of this run does not respond."""


class TooBusyError(Exception):
    """Too many reads are waiting."""


def error_body(text: str, identifier: str | None = None) -> bytes:
    """Return the JSON body of an error; its id is also in the server's log if it is a fault of ours."""
    return msgspec.json.encode({"error": {"id": identifier or os.urandom(4).hex(), "text": text}})


def failure(status: int, text: str, retry_seconds: int | None = None) -> Response:
    """Return an error response."""
    headers = {} if retry_seconds is None else {"retry-after": str(retry_seconds)}
    return Response(error_body(text), status, media_type="application/json", headers=headers)


def failure_of(error: Exception) -> Response | None:
    """Return the response to an expected error; None for a fault of ours."""
    if isinstance(error, StepscopeError):
        status = 400 if isinstance(error, UsageError) else 404
        return failure(status, f"cannot {_without_paths(error.what)}: {_without_paths(error.cause)}; {error.remedy}")
    table: tuple[tuple[type[BaseException], int, str, int | None], ...] = (
        (InvalidRequestError, 400, f"cannot answer this request: {error}; see /openapi.json", None),
        (NotFoundError, 404, f"cannot find this: {error}", None),
        (CursorExpiredError, 409, "cannot continue from this cursor: it is too old; start over", None),
        (DiskStalledError, 503, "cannot read this run: its disk does not respond; check where it is mounted", 5),
        (TooBusyError, 503, "cannot respond now: too many requests are waiting; try again", 1),
        (asyncio.TimeoutError, 503, _SLOW, 5),
        (TimeoutError, 503, _SLOW, 5),
        (OSError, 503, f"cannot read this run: {getattr(error, 'strerror', '')}; check its folder", 5),
    )
    return next((failure(*row[1:]) for row in table if isinstance(error, row[0])), None)


def _without_paths(text: str) -> str:
    return " ".join("…" if "/" in word else word for word in text.split())
