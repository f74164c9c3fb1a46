"""The types of the responses: real responses have them, and the page's types are generated from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import stepscope
from bench.drawn_hostile import write_hostile
from bench.drawn_runs import sick, trained, write
from stepscope.web import analysis_responses, responses
from stepscope.web.router import ROUTES
from tests.integration.processes import until
from tests.web.served import CONTRACT, Client, make_runs, ready, started

ROOT = Path(__file__).resolve().parents[2]
READS = (
    "run",
    "names",
    "events",
    "histograms",
    "machine",
    "alerts",
    "diagnosis",
    "ledger",
    "live",
    "ranks",
    "ranks/map",
)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A client of a server over runs of every kind: short, empty, healthy, failed, and full of odd text."""
    root = tmp_path_factory.mktemp("contract") / "runs"
    make_runs(root)
    write(root / "drawn" / "healthy", trained("healthy", steps=400))
    write(root / "drawn" / "sick", sick("sick"))
    write_hostile(root)
    server = started(root)
    ready(server)
    yield Client(server)
    server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("route", READS)
def test_real_responses_have_the_declared_type(client, route):
    """Every route returns its declared type, with no field missing or added, for every kind of run."""
    rows = client.get("/api/runs").json["rows"]
    assert len(rows) == 6
    for row in rows:
        answer = client.get(f"/api/{route}", query={"run": row["key"]})
        assert answer.status == 200
        msgspec.convert(answer.json, CONTRACT[f"/api/{route}"], strict=True)


def test_comparisons_have_the_declared_type(client):
    """A comparison of all kinds of runs has its declared type."""
    keys = [row["key"] for row in client.get("/api/runs").json["rows"]]
    answer = client.get("/api/compare", query={"run": keys})
    assert answer.status == 200
    msgspec.convert(answer.json, analysis_responses.RunComparison, strict=True)


def test_responses_of_a_live_recording_have_the_declared_type(tmp_path):
    """A run that is being recorded right now gives the declared types as well."""
    with stepscope.init(project="live", dir=str(tmp_path), config={"max_steps": 1000}) as run:
        for number in range(60):
            with run.step(samples=8), run.phase("forward"):
                run.log({"loss": 1.0 / (number + 1), "note": "text"})
        until(lambda: len(stepscope.open(run.path).points(["loss"])) == 60, "60 rows")
        server = started(tmp_path)
        try:
            ready(server)
            client = Client(server)
            (row,) = client.get("/api/runs").json["rows"]
            assert row["state"] == "running"
            for route in READS:
                assert client.get(f"/api/{route}", query={"run": row["key"]}).status == 200
        finally:
            server.stop()


def test_every_json_route_declares_a_type():
    """No route returns JSON without a type, except downloads and the description itself."""
    untyped = {route.path for route in ROUTES if not isinstance(CONTRACT.get(route.path), type(responses.Response))}
    assert untyped == {"/metrics", "/openapi.json", "/api/series", "/api/export"}


def test_an_undeclared_field_is_refused():
    """The check can fail: a field that the type does not have is an error."""
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"ok": True, "more": 1}, responses.Health)


def test_the_types_of_the_page_are_current():
    """`web/src/contract.ts` is what tools/contract.py generates from the server's types."""
    done = subprocess.run(
        [sys.executable, "tools/contract.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
