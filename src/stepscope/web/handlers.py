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

from stepscope.web.downloads import download
from stepscope.web.failures import InvalidRequestError, NotFoundError, TooBusyError, failure
from stepscope.web.parameters import AlertAction, checked
from stepscope.web.responses import CURVES_TYPE, encoded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import duckdb
    from starlette.requests import Request

    from stepscope.store.curves import Ask
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


def json_response(value: Any) -> Response:
    """Return plain data as a JSON response."""
    return Response(encoded(value), media_type=JSON)


async def healthz(_site: Site, _parameters: given.NoParameters, _request: Request) -> Response:
    """Report that the server is alive."""
    return json_response({"ok": True})


async def server(site: Site, _parameters: given.NoParameters, _request: Request) -> Response:
    """Return version, limits and settings of the server."""
    return json_response(site.facts())


async def runs(site: Site, parameters: given.RunListParameters, _request: Request) -> Response:
    """Return the list of runs, or the rows that changed since a version."""
    listed = site.runs.rows(parameters.since)
    return Response(status_code=304) if parameters.since == listed["version"] else json_response(listed)


async def metrics(site: Site, _parameters: given.NoParameters, _request: Request) -> Response:
    """Return the server's own metrics for Prometheus."""
    from stepscope.exporters.prometheus.exposition import (
        COUNTER,
        GAUGE,
        TEXT_TYPE,
        MetricFamily,
        Sample,
        label_set,
        text,
    )

    pool, traffic = site.readers, site.traffic
    counters = {
        "requests": ("requests answered or refused", traffic.requests),
        "refusals": ("requests refused by the access policy", traffic.refusals),
        "reads": ("reads of runs", pool.submitted),
        "reads_refused": ("reads refused because too many were waiting", pool.refused),
        "reads_cancelled": ("reads cancelled because the client left or the deadline passed", pool.cancelled),
    }
    states = Counter(row["state"] for row in site.runs.rows()["rows"])
    by_state = [Sample(label_set({"state": state}), number) for state, number in states.items()]
    families = [
        *(
            MetricFamily(f"stepscope_web_{name}", COUNTER, what, [Sample("", n)])
            for name, (what, n) in counters.items()
        ),
        MetricFamily("stepscope_web_uptime_seconds", GAUGE, "uptime", [Sample("", time.monotonic() - site.started)]),
        MetricFamily("stepscope_web_runs", GAUGE, "runs by state", by_state),
    ]
    return Response(text(families), media_type=TEXT_TYPE)


def reading(read: Callable[[Site, Any, Connection], Any], kind: str = JSON) -> Handler:
    """Return a handler that calls `read` in a thread of the pool, and encodes JSON there as well."""

    async def handle(site: Site, parameters: Any, request: Request) -> Response:
        def work(connection: Connection) -> bytes:
            found = read(site, parameters, connection)
            return found if isinstance(found, bytes) else encoded(found)

        run = parameters.run if isinstance(parameters.run, str) else parameters.run[0]
        key = (request.url.path, request.scope["query_string"])
        return Response(await _while_connected(request, site.readers.read(key, work, run)), media_type=kind)

    return handle


def head(site: Site, parameters: given.RunParameters, connection: Connection) -> Any:
    """Return the first screen of a run."""
    from stepscope.views.run_head import run_head

    return run_head(site.open(parameters.run, connection), site.first)


def names(site: Site, parameters: given.RunParameters, connection: Connection) -> Any:
    """Return the metrics of a run."""
    from stepscope.views.metric_list import metric_list

    return metric_list(site.open(parameters.run, connection), site.first)


def events(site: Site, parameters: given.EventParameters, connection: Connection) -> Any:
    """Return the newest events of a run."""
    from stepscope.views.event_list import event_list

    return event_list(site.open(parameters.run, connection), parameters.kind, parameters.limit)


def histograms(site: Site, parameters: given.HistogramParameters, connection: Connection) -> Any:
    """Return the histograms of a run."""
    from stepscope.views.event_list import histogram_list

    return histogram_list(site.open(parameters.run, connection), parameters.name, parameters.limit)


def machine(site: Site, parameters: given.RunParameters, connection: Connection) -> Any:
    """Return the machine of a run."""
    from stepscope.views.machine_view import machine_view

    return machine_view(site.open(parameters.run, connection))


def compare(site: Site, parameters: given.CompareParameters, connection: Connection) -> Any:
    """Return a comparison of runs."""
    from stepscope.views.comparison_view import comparison_view

    return comparison_view([site.open(key, connection) for key in parameters.run])


def diagnosis(site: Site, parameters: given.RunParameters, connection: Connection) -> Any:
    """Return the diagnosis of a run."""
    from stepscope.sources.diagnosis import diagnose

    return diagnose(site.open(parameters.run, connection))


def ledger(site: Site, parameters: given.RunParameters, connection: Connection) -> Any:
    """Return the ledger of a run."""
    from stepscope.views.ledger import usual_account

    return usual_account(site.open(parameters.run, connection))


def alerts(site: Site, parameters: given.RunParameters, connection: Connection) -> Any:
    """Return the alerts of a run."""
    from stepscope.views.event_list import alert_list

    return alert_list(site.open(parameters.run, connection))


def recipe(site: Site, parameters: given.RecipeParameters, connection: Connection) -> Any:
    """Return Python, SQL and shell code that reads the same numbers."""
    from stepscope.views.recipe import recipe as recipe_of

    return recipe_of(site.open(parameters.run, connection), _query(parameters))


def series(site: Site, parameters: given.SeriesParameters, connection: Connection) -> bytes:
    """Return curves as a binary message."""
    from stepscope.store.curves import curves
    from stepscope.views.curve_message import encode_curves

    wanted, keys = _query(parameters, fold=parameters.fold is not None), dict.fromkeys(parameters.run)
    return encode_curves([(key, curves(site.open(key, connection), wanted)) for key in keys])


async def live(site: Site, parameters: given.LiveParameters, _request: Request) -> Response:
    """Return the frames after a cursor; without a cursor, where to begin. Raises CursorExpiredError."""
    key = parameters.run
    path = site.folder(key)
    run = site.live_runs.get(key)
    if run is None or parameters.since is None or run.is_due:

        def poll(connection: Connection) -> Any:
            opened = site.live_runs.open(key, path, connection)
            opened.poll()
            return opened

        run = await _within_deadline(site.readers.read(("live", key), poll, key))
    if parameters.since is None:
        return json_response(await _within_deadline(site.readers.read(("hello", key), lambda _: run.hello(), key)))
    frames = run.since(parameters.since)
    return Response(status_code=304) if frames is None else Response(frames, media_type=CURVES_TYPE)


async def export(site: Site, parameters: given.ExportParameters, _request: Request) -> Response:
    """Return a download."""
    return await download(site, parameters)


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


def _query(parameters: given.CurveParameters, *, fold: bool = False) -> Ask:
    from stepscope.store.curves import Ask

    chosen = (parameters.rank, parameters.attempt)
    ranks, attempts = (None if values is None else tuple(dict.fromkeys(values)) for values in chosen)
    steps, times = parameters.range_on("step"), parameters.range_on("time", 1e6)
    return Ask(tuple(dict.fromkeys(parameters.name)), parameters.points, ranks, attempts, steps, times, fold=fold)


async def _within_deadline(work: Awaitable[Any]) -> Any:
    try:
        return await asyncio.wait_for(work, DEADLINE)
    except asyncio.TimeoutError:
        raise TimeoutError from None  # two classes before Python 3.11


async def _while_connected(request: Request, work: Awaitable[Any]) -> bytes:
    """Wait for a read while the client does; cancel it when the client leaves."""
    task = asyncio.ensure_future(_within_deadline(work))
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
