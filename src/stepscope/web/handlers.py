"""Handlers of the routes: each takes the site, the parsed parameters and the request, and returns a response.

The event loop never reads a run itself: a pool of threads does, and views are imported only there.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from stepscope.web.failures import InvalidRequestError, NotFoundError, TooBusyError, failure
from stepscope.web.parameters import AlertAction, checked
from stepscope.web.responses import CURVES_TYPE, encoded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import duckdb
    from starlette.requests import Request

    from stepscope.web import parameters as given
    from stepscope.web.site import Site

    Connection = duckdb.DuckDBPyConnection
    Handler = Callable[[Site, Any, Request], Awaitable[Response]]

DEADLINE = 30.0
"""Seconds after which a read is cancelled."""
MAX_BODY = 65_536
"""Bytes of a request's body."""
BODY_SECONDS = 10.0
"""Seconds within which a body must arrive."""
JSON = "application/json"
LONG = frozenset({"/api/diagnosis"})
"""Reads that take seconds of processor time on a large run; no page waits for them."""


def json_response(value: Any) -> Response:
    """Return plain data as a JSON response."""
    return Response(encoded(value), media_type=JSON)


def stating(facts: Callable[[Site], Any]) -> Handler:
    """Return a handler that responds with facts about the server."""

    async def handle(site: Site, _parameters: given.NoParameters, _request: Request) -> Response:
        return json_response(facts(site))

    return handle


async def runs(site: Site, parameters: given.RunListParameters, _request: Request) -> Response:
    """Return the list of runs, or the rows that changed since a version."""
    listed = site.runs.rows(parameters.since)
    return Response(status_code=304) if parameters.since == listed["version"] else json_response(listed)


async def metrics(site: Site, _parameters: given.NoParameters, _request: Request) -> Response:
    """Return the server's own metrics for Prometheus."""
    from stepscope.exporters.prometheus import exposition
    from stepscope.exporters.prometheus.exposition import MetricFamily, Sample

    pool, traffic = site.readers, site.traffic
    counters = {
        "requests": ("requests answered or refused", traffic.requests),
        "refusals": ("requests refused by the access policy", traffic.refusals),
        "reads": ("reads of runs", pool.submitted),
        "reads_refused": ("reads refused because too many were waiting", pool.refused),
        "reads_cancelled": ("reads cancelled because the client left or the deadline passed", pool.cancelled),
    }
    states = Counter(row["state"] for row in site.runs.rows()["rows"])
    by_state = [Sample(exposition.label_set({"state": state}), number) for state, number in states.items()]
    uptime = [Sample("", time.monotonic() - site.started)]
    families = [
        MetricFamily(f"stepscope_web_{name}", exposition.COUNTER, what, [Sample("", number)])
        for name, (what, number) in counters.items()
    ]
    families.append(MetricFamily("stepscope_web_uptime_seconds", exposition.GAUGE, "uptime", uptime))
    families.append(MetricFamily("stepscope_web_runs", exposition.GAUGE, "runs by state", by_state))
    return Response(exposition.text(families), media_type=exposition.TEXT_TYPE)


def reading(path: str, kind: str = JSON) -> Handler:
    """Return a handler that calls a function of `run_reads` in a thread of the pool, and encodes JSON there as well."""

    async def handle(site: Site, parameters: Any, request: Request) -> Response:
        runs = [parameters.run] if isinstance(parameters.run, str) else parameters.run

        def work(connection: Connection) -> bytes:
            from stepscope.web.run_reads import READS

            found = READS[path](site, parameters, *(site.open(run, connection) for run in runs))
            return found if isinstance(found, bytes) else encoded(found)

        key = (path, request.scope["query_string"])
        found = site.readers.read(key, work, runs[0], is_long=path in LONG)
        return Response(await _while_connected(request, found), media_type=kind)

    return handle


async def live(site: Site, parameters: given.LiveParameters, _request: Request) -> Response:
    """Return the frames after a cursor; without a cursor, where to begin. Raises CursorExpiredError."""
    key = parameters.run
    path = site.folder(key)
    run: Any = site.live_runs.get(key)
    if run is None or parameters.since is None or run.is_due:

        def poll(connection: Connection) -> Any:
            opened = site.live_runs.open(key, path, connection)
            opened.poll()
            return opened

        run = await asyncio.wait_for(site.readers.read(("live", key), poll, key), DEADLINE)
    if parameters.since is None:
        hello = site.readers.read(("hello", key), lambda _: run.hello(), key)
        return json_response(await asyncio.wait_for(hello, DEADLINE))
    frames = run.since(parameters.since)
    return Response(status_code=304) if frames is None else Response(frames, media_type=CURVES_TYPE)


async def change_alerts(site: Site, _parameters: given.NoParameters, request: Request) -> Response:
    """Pass a change of an alert, sent as JSON, on to the watchers of a live run."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        return failure(415, "cannot read this request: it is not JSON; send application/json")
    if request.headers.get("content-encoding"):
        return failure(415, "cannot read this request: it is compressed; send it uncompressed")
    body = await asyncio.wait_for(_body(request), BODY_SECONDS)
    if body is None:
        return failure(413, f"cannot read this request: it is longer than {MAX_BODY} bytes; send less")
    try:
        action = checked(msgspec.json.decode(body, type=AlertAction))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError(str(error)[:200]) from None
    return json_response(await asyncio.get_running_loop().run_in_executor(None, _leave_request, site, action))


def _leave_request(site: Site, action: AlertAction) -> dict[str, Any]:
    """Leave a request for the watchers of a run. Raises NotFoundError if the run has ended, UsageError."""
    from stepscope.alerts.user_requests import ask

    path = site.folder(action.run)
    row = site.runs.row(action.run)
    if row is None or row["state"] != "running":
        raise NotFoundError("this run has ended, so no watcher can change its alerts")
    verb = {"ack": "acknowledge"}.get(action.action, action.action)
    named = {"alert": action.alert or action.rule, "rule": action.rule or action.alert, "seconds": action.seconds}
    ask(path, {"do": verb, "by": "the page", **{key: value for key, value in named.items() if value is not None}})
    return {"ok": True, "text": "the run's watcher applies it within a second"}


async def _while_connected(request: Request, work: Awaitable[Any]) -> bytes:
    """Wait for a read while the client does; cancel it when the client leaves."""
    task = asyncio.ensure_future(asyncio.wait_for(work, DEADLINE))
    left = asyncio.ensure_future(_disconnected(request))
    try:
        done, _ = await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if task not in done:
            task.cancel()
            raise TooBusyError  # nobody receives it
        return bytes(task.result())
    finally:
        left.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Request) -> bytes | None:
    """Return the body; None if it is too long."""
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY:
            return None
    return data
