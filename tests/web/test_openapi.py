"""The description of the interface, and real answers beside it."""

from __future__ import annotations

import http.client

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from stepscope.web.router import ROUTES, document
from tests.web.served import DATA, OTHER, RUN

schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis: pip install stepscope[test]")

openapi_checks = pytest.importorskip("schemathesis.specs.openapi.checks")
SERVER_ERRORS = range(500, 600)
CHECKS = [openapi_checks.response_schema_conformance, openapi_checks.content_type_conformance]
CHECKS += [openapi_checks.status_code_conformance]


def test_every_route_is_described():
    """The description has every route of the server, and every reference in it leads somewhere."""
    made = document()
    paths = made["paths"]
    assert {route.path for route in ROUTES} == set(paths)
    assert {path.partition("?")[0] for path in DATA} <= set(paths)
    assert set(paths["/api/alerts"]) == {"get", "post"}
    names = {part.partition('"')[0] for part in str(made).replace("'", '"').split("#/components/schemas/")[1:]}
    assert names <= set(made["components"]["schemas"])


@pytest.fixture(scope="module")
def described(server):
    """The description as schemathesis reads it, with the server behind it."""
    made = document()
    for operations in made["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["name"] == "run":
                    schema = parameter["schema"]
                    known = {"type": "string", "enum": [RUN, OTHER, "nothing"]}
                    parameter["schema"] = {**schema, "items": known} if schema.get("type") == "array" else known
                if parameter["name"] == "name" and parameter["schema"].get("type") == "array":
                    parameter["schema"]["items"] = {"type": "string", "enum": ["loss", "accuracy", "nothing", "é"]}
    return schemathesis.openapi.from_dict(made)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(document()["paths"]))
def test_answers_are_as_described(described, server, path):
    """Whatever fits the description is answered, as it says; nothing makes the server fail."""

    @settings(
        max_examples=12,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @schemathesis_given(described, path)
    def ask(case):
        headers = {"Origin": f"http://127.0.0.1:{server.port}"} if case.method == "POST" else {}
        response = case.call(base_url=f"http://127.0.0.1:{server.port}", headers=headers)
        assert response.status_code not in SERVER_ERRORS or response.status_code == http.client.SERVICE_UNAVAILABLE
        case.validate_response(response, checks=CHECKS)

    ask()


def schemathesis_given(schema, path):
    """Return hypothesis' decorator over the cases of every operation at a path."""
    from hypothesis import given

    cases = [operation.as_strategy() for method in ("GET", "POST") for operation in _operations(schema, path, method)]
    return given(st.one_of(cases))


def _operations(schema, path, method):
    try:
        return [schema[path][method]]
    except (KeyError, LookupError):
        return []
