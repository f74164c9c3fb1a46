"""The router: one table of all routes, which the application and its OpenAPI description are built from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route, Router

from stepscope.version import __version__
from stepscope.web import analysis_responses as analysis
from stepscope.web import handlers, responses
from stepscope.web import parameters as given
from stepscope.web import rank_responses as ranks
from stepscope.web.console_responses import PrintedLines
from stepscope.web.downloads import KINDS, download
from stepscope.web.failures import NotFoundError, failure_of
from stepscope.web.handlers import JSON, reading, stating
from stepscope.web.parameters import NoParameters, RunParameters
from stepscope.web.responses import CURVES_TYPE
from stepscope.web.static_files import StaticFiles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

    from stepscope.web.handlers import Handler
    from stepscope.web.site import Site

CURVES: dict[str, Any] = {CURVES_TYPE: None}
REFERENCE = "#/components/schemas/{name}"
REFUSALS = {
    "400": "the parameters are invalid",
    "401": "a token is needed",
    "403": "the request comes from another site, or the token may only read",
    "404": "there is no such run, metric or part",
    "414": "the address is too long",
    "421": "the request names another host",
    "429": "too many wrong tokens",
    "503": "the server is busy or too slow; see Retry-After",
}
UNCHANGED = {"304": "nothing changed"}
DOWNLOADS: dict[str, Any] = {**{kind.partition(";")[0]: None for kind in KINDS.values()}, JSON: Any}


@dataclass(frozen=True)
class ApiRoute:
    """One route: its parameters, its responses, and its handler."""

    path: str
    title: str
    parameters: type[given.Parameters]
    responses: Mapping[str, Any]
    """Type of the body by media type; None where it is not JSON."""
    handle: Handler
    method: str = "GET"
    body: type[given.Parameters] | None = None
    """Type of the JSON that a POST takes."""
    statuses: Mapping[str, str] = field(default_factory=dict)
    """Statuses of this route beyond 200 and REFUSALS."""


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of all routes, from the types that requests and responses are checked with."""
    used = (kind for route in ROUTES for kind in (route.body, *route.responses.values()))
    types = [responses.ErrorResponse, *(kind for kind in used if kind is not None)]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    by_type = {str(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stepscope", "version": __version__, "description": "Recorded training runs."},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(route: ApiRoute, schemas: Mapping[str, Any]) -> dict[str, Any]:
    def content(types: Mapping[str, Any]) -> dict[str, Any]:
        return {media: {} if kind is None else {"schema": schemas[str(kind)]} for media, kind in types.items()}

    statuses: dict[str, Any] = {"200": {"description": "the response", "content": content(route.responses)}}
    for status, text in {**REFUSALS, **route.statuses}.items():
        body = {} if status == "304" else {"content": content({JSON: responses.ErrorResponse})}
        statuses[status] = {"description": text, **body}
    facts: dict[str, Any] = {"summary": route.title, "parameters": _parameters(route.parameters), "responses": statuses}
    if route.body is not None:
        facts["requestBody"] = {"required": True, "content": content({JSON: route.body})}
    return facts


def _parameters(kind: type[given.Parameters]) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    own = components[kind.__name__]
    return [
        {"name": name, "in": "query", "required": name in own.get("required", []), "schema": _without_null(schema)}
        for name, schema in own["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter: an optional parameter is left out, it is never null."""
    present = [part for part in schema.get("anyOf", []) if part.get("type") != "null"]
    if not present:
        return schema
    rest = {key: value for key, value in schema.items() if key not in {"anyOf", "default"}}
    return {**rest, **present[0]} if len(present) == 1 else {**rest, "anyOf": present}


def _fact(path: str, title: str, response: Any, facts: Callable[[Site], Any]) -> ApiRoute:
    return ApiRoute(path, title, NoParameters, {JSON: response}, stating(facts))


def _read(path: str, title: str, kind: type[given.Parameters], response: Any) -> ApiRoute:
    return ApiRoute(path, title, kind, {JSON: response}, reading(path))


ROUTES: tuple[ApiRoute, ...] = (
    _fact("/healthz", "Whether the server is alive", responses.Health, lambda _: {"ok": True}),
    ApiRoute("/metrics", "Metrics of the server itself", NoParameters, {"text/plain": None}, handlers.metrics),
    _fact("/openapi.json", "This description", dict[str, Any], lambda _: document()),
    _fact("/api/server", "The server and its limits", responses.ServerInfo, lambda site: site.facts()),
    ApiRoute(
        "/api/runs",
        "The list of runs, or its changes",
        given.RunListParameters,
        {JSON: responses.RunRows},
        handlers.runs,
        statuses=UNCHANGED,
    ),
    _read("/api/run", "The first screen of a run", RunParameters, responses.RunHead),
    _read("/api/names", "The metrics of a run", RunParameters, responses.Metrics),
    _read("/api/events", "The events of a run", given.EventParameters, responses.Events),
    _read("/api/console", "What the ranks of a run printed", given.ConsoleParameters, PrintedLines),
    _read("/api/histograms", "The histograms of a run", given.HistogramParameters, responses.Histograms),
    _read("/api/machine", "The machine of a run", RunParameters, responses.RunMachine),
    _read("/api/ranks", "The ranks of a run, the worst first", given.RankParameters, ranks.Ranks),
    _read("/api/ranks/map", "A metric by rank and step", given.RankMapParameters, ranks.RankHeat),
    _read("/api/ranks/step", "A step of one rank", given.RankStepParameters, ranks.RankStep),
    _read("/api/compare", "A comparison of runs", given.CompareParameters, analysis.RunComparison),
    _read("/api/diagnosis", "Why a run is slow or fails", RunParameters, analysis.Diagnosis),
    _read("/api/ledger", "Where time and money went", RunParameters, analysis.RunLedger),
    _read("/api/recipe", "Code for the same numbers", given.RecipeParameters, analysis.Recipe),
    _read("/api/alerts", "The alerts of a run", RunParameters, analysis.Alerts),
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
    ApiRoute("/api/series", "Curves", given.SeriesParameters, CURVES, reading("/api/series", CURVES_TYPE)),
    ApiRoute(
        "/api/live",
        "New rows of a run",
        given.LiveParameters,
        {JSON: responses.Hello, **CURVES},
        handlers.live,
        statuses={**UNCHANGED, "409": "the cursor is too old: start over"},
    ),
    ApiRoute("/api/export", "A download", given.ExportParameters, DOWNLOADS, download),
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
