"""The description of the interface (OpenAPI 3.1), made of the types that the server itself uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.version import __version__
from stepscope.web import questions as ask
from stepscope.web import shapes
from stepscope.web.encoding_kind import KIND
from stepscope.web.routes import JSON_ROUTES

if TYPE_CHECKING:
    from collections.abc import Mapping

REFERENCE = "#/components/schemas/{name}"
TEXTS = {
    "csv": "text/csv",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "html": "text/html",
}
REFUSALS = {
    "400": "the question is not one of these",
    "401": "a token is needed",
    "403": "it comes from another site, or from another user",
    "404": "there is no such run, metric or part",
    "414": "the address is too long",
    "421": "the host is not this server",
    "429": "too many wrong tokens",
    "503": "busy, or too slow; see Retry-After",
}


def document() -> dict[str, Any]:
    """Return the description."""
    schema = _Schema()
    simple: dict[str, tuple[str, type[ask.Question], Any]] = {
        "/api/server": ("What the page must know of the server", ask.Nothing, shapes.Server),
        "/api/runs": ("The list of runs, or what changed in it", ask.Since, shapes.Runs),
        **{route.path: (route.title, route.question, route.answer) for route in JSON_ROUTES},
    }
    paths: dict[str, Any] = {
        path: {"get": schema.operation(title, question, {"application/json": answer})}
        for path, (title, question, answer) in simple.items()
    }
    paths["/api/series"] = {"get": schema.operation("Curves, in the binary form", ask.Series, {KIND: None})}
    live = {"application/json": shapes.Hello, KIND: None}
    paths["/api/live"] = {"get": schema.operation("What is new in a run", ask.Live, live)}
    downloads = {**dict.fromkeys(TEXTS.values()), "application/json": Any}
    paths["/api/export"] = {"get": schema.operation("A download", ask.Export, downloads)}
    paths["/api/alerts"] |= {"post": schema.action("Change the state of an alert", ask.AlertAction, shapes.Done)}
    paths["/healthz"] = {"get": schema.operation("Whether the server is alive", ask.Nothing, {"application/json": Any})}
    paths["/metrics"] = {"get": schema.operation("The server's own figures", ask.Nothing, {"text/plain": None})}
    for path in ("/api/runs", "/api/live"):
        paths[path]["get"]["responses"]["304"] = {"description": "nothing changed"}
    paths["/api/live"]["get"]["responses"]["409"] = schema.refusal("the cursor is too old: start over")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stepscope", "version": __version__, "description": "Recorded runs, read only."},
        "paths": paths,
        "components": {"schemas": schema.components},
    }


class _Schema:
    """Collects the schemas of types."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type, its parts in `components`."""
        (found,), parts = msgspec.json.schema_components([kind], ref_template=REFERENCE)
        self.components.update(parts)
        return found

    def operation(self, title: str, question: type[ask.Question], answers: Mapping[str, Any]) -> dict[str, Any]:
        """Return a route that is asked by its address."""
        content = {kind: {} if answer is None else {"schema": self.of(answer)} for kind, answer in answers.items()}
        responses: dict[str, Any] = {"200": {"description": "the answer", "content": content}}
        responses |= {status: self.refusal(text) for status, text in REFUSALS.items()}
        return {"summary": title, "parameters": self.parameters(question), "responses": responses}

    def action(self, title: str, question: type[ask.Question], answer: Any) -> dict[str, Any]:
        """Return a route that takes a body."""
        found = self.operation(title, ask.Nothing, {"application/json": answer})
        body = {"required": True, "content": {"application/json": {"schema": self.of(question)}}}
        more = {"413": "the body is too long", "415": "the body is not plain JSON"}
        found["responses"] |= {status: self.refusal(text) for status, text in more.items()}
        return {**found, "requestBody": body}

    def refusal(self, text: str) -> dict[str, Any]:
        """Return an answer that only says why there is none."""
        return {"description": text, "content": {"application/json": {"schema": self.of(shapes.Error)}}}

    def parameters(self, question: type[ask.Question]) -> list[dict[str, Any]]:
        """Return the parameters of a question."""
        (_,), parts = msgspec.json.schema_components([question], ref_template=REFERENCE)
        own = parts[question.__name__]
        required = own.get("required", [])
        return [
            {"name": name, "in": "query", "required": name in required, "schema": _asked(schema)}
            for name, schema in own["properties"].items()
        ]


def _asked(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter: one that may be left out is not null, it is not there."""
    kept = [part for part in schema.get("anyOf", []) if part.get("type") != "null"]
    if not kept:
        return schema
    rest = {key: value for key, value in schema.items() if key not in {"anyOf", "default"}}
    return {**rest, **kept[0]} if len(kept) == 1 else {**rest, "anyOf": kept}
