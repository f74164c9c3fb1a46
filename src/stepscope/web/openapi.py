"""Describe the routes in OpenAPI 3.1, from the types that the server checks requests and responses with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.version import __version__
from stepscope.web import responses

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.web.handlers import Handler
    from stepscope.web.parameters import Parameters

REFERENCE = "#/components/schemas/{name}"
JSON = "application/json"
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


@dataclass(frozen=True)
class ApiRoute:
    """One route: its parameters, its responses, and its handler."""

    path: str
    title: str
    parameters: type[Parameters]
    responses: Mapping[str, Any]
    """Type of the body by media type; None where it is not JSON."""
    handle: Handler
    method: str = "GET"
    body: type[Parameters] | None = None
    """Type of the JSON that a POST takes."""
    statuses: Mapping[str, str] = field(default_factory=dict)
    """Statuses of this route beyond 200 and REFUSALS."""


def describe(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    """Return the OpenAPI document of some routes."""
    types = [responses.ErrorResponse]
    for route in routes:
        types += [kind for kind in (route.body, *route.responses.values()) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    by_type = {str(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for route in routes:
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


def _parameters(kind: type[Parameters]) -> list[dict[str, Any]]:
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
