"""The application: questions in, answers out, every failure as a small JSON with an id."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.web import exporting, questions
from stepscope.web.answers import NotThereError, Site, encoded
from stepscope.web.encoding_kind import KIND
from stepscope.web.guard import Guard
from stepscope.web.readers import BusyError, HeldUpError
from stepscope.web.routes import JSON_ROUTES, JsonRoute, act_on_alerts, metrics_page, read_json, read_live, read_series
from stepscope.web.static_files import StaticFiles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from stepscope.web.rules import Rules

    Handler = Callable[[Request], Awaitable[Response]]

MOST_BODY = 65_536
"""Largest request body in bytes."""
BODY_SECONDS = 10.0
"""Seconds that a body may take to come."""
JSON = "application/json"


class App:
    """The routes of one site."""

    def __init__(self, site: Site, files: StaticFiles | None = None) -> None:
        """Answer questions about a site; the page comes from `files`."""
        self._site = site
        self._files = files or StaticFiles()
        self._started = time.monotonic()
        self.guard: Guard | None = None

    def build(self, rules: Rules) -> Guard:
        """Return the application behind its guard."""
        routes = [
            Route("/healthz", _safe(self._healthz)),
            Route("/metrics", _safe(self._metrics)),
            Route("/openapi.json", _safe(self._openapi)),
            Route("/api/server", _safe(self._server)),
            Route("/api/runs", _safe(self._runs)),
            Route("/api/series", _safe(self._series)),
            Route("/api/live", _safe(self._live)),
            Route("/api/export", _safe(self._export)),
            Route("/api/alerts", _safe(self._alert_action), methods=["POST"]),
            *(Route(one.path, _safe(self._json(one))) for one in JSON_ROUTES),
            Route("/api/{rest:path}", _safe(self._nothing)),
            Route("/{rest:path}", self._page),
        ]
        self.guard = Guard(Router(routes, redirect_slashes=False), rules)
        return self.guard

    def _json(self, route: JsonRoute) -> Handler:
        async def answer(request: Request) -> Response:
            query = request.scope["query_string"]
            asked = questions.parse(query, route.question)
            data = await _unless_gone(request, read_json(self._site, route, asked, query))
            return Response(data, media_type=JSON)

        return answer

    async def _healthz(self, request: Request) -> Response:
        questions.parse(request.scope["query_string"], questions.Nothing)
        return Response(b'{"ok":true}', media_type=JSON)

    async def _metrics(self, request: Request) -> Response:
        questions.parse(request.scope["query_string"], questions.Nothing)
        guard = self.guard
        counts = (guard.requests, guard.refusals) if guard else (0, 0)
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(metrics_page(self._site, *counts, self._started), media_type=kind)

    async def _openapi(self, request: Request) -> Response:
        from stepscope.web.openapi import document

        questions.parse(request.scope["query_string"], questions.Nothing)
        return Response(msgspec.json.encode(document()), media_type=JSON)

    async def _server(self, request: Request) -> Response:
        questions.parse(request.scope["query_string"], questions.Nothing)
        return Response(encoded(self._site.server()), media_type=JSON)

    async def _runs(self, request: Request) -> Response:
        asked = questions.parse(request.scope["query_string"], questions.Since)
        found = self._site.catalogue.rows(asked.since)
        if asked.since is not None and asked.since == found["version"]:
            return Response(status_code=304)
        return Response(encoded(found), media_type=JSON)

    async def _series(self, request: Request) -> Response:
        query = request.scope["query_string"]
        asked = questions.parse(query, questions.Series)
        data = await _unless_gone(request, read_series(self._site, asked, query))
        return Response(data, media_type=KIND)

    async def _live(self, request: Request) -> Response:
        asked = questions.parse(request.scope["query_string"], questions.Live)
        found = await read_live(self._site, asked)
        if found is None:
            return Response(status_code=304)
        return (
            Response(found, media_type=KIND) if isinstance(found, bytes) else Response(encoded(found), media_type=JSON)
        )

    async def _export(self, request: Request) -> Response:
        asked = questions.parse(request.scope["query_string"], questions.Export)
        return await exporting.begin(self._site, asked)

    async def _alert_action(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            return failure(415, "cannot read this: it is not JSON; send application/json")
        if request.headers.get("content-encoding"):
            return failure(415, "cannot read this: it is compressed; send it as it is")
        body = await asyncio.wait_for(_body(request), BODY_SECONDS)
        if body is None:
            return failure(413, f"cannot read this: it is longer than {MOST_BODY} bytes; send less")
        try:
            asked = questions.checked(msgspec.json.decode(body, type=questions.AlertAction))
        except (msgspec.DecodeError, RecursionError) as error:
            raise questions.WrongQuestionError(str(error)[:200]) from None
        loop = asyncio.get_running_loop()
        return Response(encoded(await loop.run_in_executor(None, act_on_alerts, self._site, asked)), media_type=JSON)

    async def _nothing(self, _request: Request) -> Response:
        raise NotThereError("there is no such route; see /openapi.json")

    async def _page(self, request: Request) -> Response:
        headers, path = request.headers, request.scope["path"]
        depth = path.count("/") - 1
        if depth and "." not in path.rpartition("/")[2]:  # the page finds its files beside itself, behind any proxy
            return RedirectResponse("../" * depth)
        return self._files.answer(path, headers.get("accept-encoding", ""), headers.get("if-none-match", ""))


def failure(status: int, text: str, retry: int | None = None) -> Response:
    """Return an answer that only says why there is none."""
    body = msgspec.json.encode({"error": {"id": os.urandom(4).hex(), "text": text}})
    headers = {} if retry is None else {"retry-after": str(retry)}
    return Response(body, status, media_type=JSON, headers=headers)


def _safe(handler: Handler) -> Handler:
    """Return the handler with every expected failure turned into an answer."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            expected = _told(error)
            if expected is None:
                raise
            return expected

    return answer


def _told(error: Exception) -> Response | None:
    """Return the answer that says what went wrong; None for an error of our own."""
    from stepscope.web.live import BehindError

    if isinstance(error, StepscopeError):
        status = 400 if isinstance(error, UsageError) else 404
        return failure(status, f"cannot {_without_paths(error.what)}: {_without_paths(error.cause)}; {error.remedy}")
    slow = "cannot answer in time: the disk or the question is too slow; ask for less"
    table: tuple[tuple[type[BaseException], int, str, int | None], ...] = (
        (questions.WrongQuestionError, 400, f"cannot answer this question: {error}; see /openapi.json", None),
        (NotThereError, 404, f"cannot find this: {error}", None),
        (BehindError, 409, "cannot go on from there: too much happened since; start over", None),
        (HeldUpError, 503, "cannot read this run now: its disk does not answer; look at where it is mounted", 5),
        (BusyError, 503, "cannot answer now: too many questions are waiting; ask again", 1),
        (asyncio.TimeoutError, 503, slow, 5),
        (TimeoutError, 503, slow, 5),
        (OSError, 503, f"cannot read this run: {getattr(error, 'strerror', '')}; look at its folder", 5),
    )
    return next((failure(*row[1:]) for row in table if isinstance(error, row[0])), None)


def _without_paths(text: str) -> str:
    """Return a text without the folders that it names: errors show no paths."""
    return " ".join("…" if "/" in word else word for word in text.split())


async def _unless_gone(request: Request, work: Any) -> bytes:
    """Wait for an answer as long as the client does; cancel it when the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        done, _ = await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task not in done:
            task.cancel()
            raise BusyError  # nobody reads it
        return bytes(task.result())
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes | None:
    """Return the body; None if it is too long."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MOST_BODY:
            return None
    return data
