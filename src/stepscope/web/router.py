"""The router: one table of all routes, which the application and its OpenAPI description are built from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router

from stepscope.web import analysis_responses as analysis
from stepscope.web import handlers, responses
from stepscope.web import parameters as given
from stepscope.web.downloads import KINDS
from stepscope.web.failures import NotFoundError, failure_of
from stepscope.web.handlers import JSON, json_response, reading
from stepscope.web.openapi import ApiRoute, describe
from stepscope.web.parameters import NoParameters, RunParameters
from stepscope.web.responses import CURVES_TYPE
from stepscope.web.static_files import StaticFiles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from stepscope.web.site import Site

UNCHANGED = {"304": "nothing changed"}
DOWNLOADS: dict[str, Any] = {**{kind.partition(";")[0]: None for kind in KINDS.values()}, JSON: Any}


def document() -> dict[str, Any]:
    """Return the OpenAPI document of all routes."""
    return describe(ROUTES)


async def _openapi(_site: Site, _parameters: NoParameters, _request: Request) -> Response:
    return json_response(document())


def _read(path: str, title: str, kind: type[given.Parameters], response: Any, read: Any) -> ApiRoute:
    return ApiRoute(path, title, kind, {JSON: response}, reading(read))


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute("/healthz", "Whether the server is alive", NoParameters, {JSON: responses.Health}, handlers.healthz),
    ApiRoute("/metrics", "Metrics of the server itself", NoParameters, {"text/plain": None}, handlers.metrics),
    ApiRoute("/openapi.json", "This description", NoParameters, {JSON: dict[str, Any]}, _openapi),
    ApiRoute("/api/server", "The server and its limits", NoParameters, {JSON: responses.ServerInfo}, handlers.server),
    ApiRoute(
        "/api/runs",
        "The list of runs, or its changes",
        given.RunListParameters,
        {JSON: responses.RunRows},
        handlers.runs,
        statuses=UNCHANGED,
    ),
    _read("/api/run", "The first screen of a run", RunParameters, responses.RunHead, handlers.head),
    _read("/api/names", "The metrics of a run", RunParameters, responses.Metrics, handlers.names),
    _read("/api/events", "The events of a run", given.EventParameters, responses.Events, handlers.events),
    _read(
        "/api/histograms",
        "The histograms of a run",
        given.HistogramParameters,
        responses.Histograms,
        handlers.histograms,
    ),
    _read("/api/machine", "The machine of a run", RunParameters, responses.RunMachine, handlers.machine),
    _read("/api/compare", "A comparison of runs", given.CompareParameters, analysis.RunComparison, handlers.compare),
    _read("/api/diagnosis", "Why a run is slow or fails", RunParameters, analysis.Diagnosis, handlers.diagnosis),
    _read("/api/ledger", "Where time and money went", RunParameters, analysis.RunLedger, handlers.ledger),
    _read("/api/recipe", "Code for the same numbers", given.RecipeParameters, analysis.Recipe, handlers.recipe),
    _read("/api/alerts", "The alerts of a run", RunParameters, analysis.Alerts, handlers.alerts),
    ApiRoute(
        "/api/alerts",
        "Change the state of an alert",
        NoParameters,
        {JSON: responses.Accepted},
        handlers.change_alerts,
        method="POST",
        body=given.AlertAction,
        statuses={"413": "the body is too long", "415": "the body is not plain JSON"},
    ),
    ApiRoute(
        "/api/series", "Curves", given.SeriesParameters, {CURVES_TYPE: None}, reading(handlers.series, CURVES_TYPE)
    ),
    ApiRoute(
        "/api/live",
        "New rows of a run",
        given.LiveParameters,
        {JSON: responses.Hello, CURVES_TYPE: None},
        handlers.live,
        statuses={**UNCHANGED, "409": "the cursor is too old: start over"},
    ),
    ApiRoute("/api/export", "A download", given.ExportParameters, DOWNLOADS, handlers.export),
)


def build(site: Site, files: StaticFiles | None = None) -> Router:
    """Return the application that answers all routes of a site; the page comes from `files`."""
    page = files or StaticFiles()

    async def serve_page(request: Request) -> Response:
        headers, path = request.headers, request.scope["path"]
        depth = path.count("/") - 1
        if depth and "." not in path.rpartition("/")[2]:  # the page loads its files relative to itself
            return RedirectResponse("../" * depth)
        return page.answer(path, headers.get("accept-encoding", ""), headers.get("if-none-match", ""))

    async def unknown(_request: Request) -> Response:
        raise NotFoundError("there is no such route; see /openapi.json")

    return Router(
        [
            *(Route(route.path, _guarded(_endpoint(site, route)), methods=[route.method]) for route in ROUTES),
            Route("/api/{rest:path}", _guarded(unknown)),
            Route("/{rest:path}", serve_page),
        ],
        redirect_slashes=False,
    )


def _endpoint(site: Site, route: ApiRoute) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        parsed = given.parse(request.scope["query_string"], route.parameters)
        return await route.handle(site, parsed, request)

    return endpoint


def _guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers every expected error with a status and a sentence."""

    async def respond(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:
            expected = failure_of(error)
            if expected is None:
                raise
            return expected

    return respond
