"""Events with fields of any type and of any kind of ours, and what commands and answers of the page make of them."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.alerts.evaluation.history import alerts_of
from stepscope.cli.main import main
from stepscope.core.events import TYPES, WATCHERS
from stepscope.sources.attempts import attempts_of
from stepscope.sources.opened_run import open_run
from stepscope.store.sql import connect
from tests.exporters.recorded import CREATED, WRITER, make_run, points_of, seal_points
from tests.web.served import Client, ready, started

KINDS = sorted(
    {
        *WATCHERS,
        *("log", "histogram", "exception", "out_of_memory", "worker_died", "compile", "graph", "torch_setup", "loader"),
        *(
            "optimizer_made",
            "gradient_layers",
            "nonfinite_gradient",
            "exploding_gradient",
            "vanishing_gradient",
            "alert",
        ),
        *(
            "checkpoint",
            "evaluation",
            "definitions",
            "config",
            "hyperparameters",
            "alert_options",
            "planted",
            "profile",
        ),
    }
)
TEXT = st.one_of(st.text(max_size=8), st.sampled_from(["firing", "critical", "\ud800", "NaN", "../x", "\x1b[2J"]))
LEAF = st.one_of(
    *(st.none(), st.booleans(), st.floats(), TEXT),
    *(st.integers(), st.sampled_from([10**30, -(2**63), 2**63, 10**400, 0, 1e308])),
)
VALUE = st.recursive(
    LEAF, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)), max_leaves=5
)
FIELDS = st.dictionaries(
    st.sampled_from(sorted({*TYPES, "values", "layer", "request", "odd"} - {"time"})), VALUE, max_size=8
)
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), FIELDS, st.booleans()), min_size=30, max_size=60)
ROUTES = ("run", "names", "events", "histograms", "machine", "alerts", "diagnosis", "ledger", "live", "export")
COMMANDS = (
    *(("show",), ("diagnose",), ("ledger",), ("alerts", "list"), ("alerts", "history")),
    *(("export", "--format", "json", "--output", "OUT", "--force"), ("report", "--html", "OUT", "--force")),
)


def written(folder, events):
    """Write events with a right checksum, whatever is in them: kind, fields, and whether the user wrote them."""
    lines = []
    for number, (kind, fields, is_users) in enumerate(events):
        mark = {"written_by": "user"} if is_users else {}
        place = {"time": CREATED + number * 1000, "rank": 0, "attempt": 0, "kind": kind}
        body = json.dumps({**place, **fields, **mark})[1:].encode()
        lines.append(b'{"crc": "%08x", %s\n' % (zlib.crc32(body), body))
    folder.events_file(WRITER).write_bytes(b"".join(lines))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of a run of 200 steps, and a server over it."""
    root = tmp_path_factory.mktemp("any") / "runs"
    folder = make_run(root, "run", "p", config={"lr": 0.1})
    steps = np.full(200, 0.01)
    seal_points(folder, points_of({"step_seconds": steps, "phase/forward": steps / 2, "loss": np.linspace(2, 1, 200)}))
    server = started(root)
    ready(server)
    yield folder, Client(server)
    server.stop()


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(events=EVENTS)
def test_no_reader_trusts_a_type(recorded, tmp_path_factory, events):
    """Every command and every answer about a run takes any value in any field of an event, ours or the user's."""
    folder, client = recorded
    written(folder, events)
    out = tmp_path_factory.mktemp("out") / "file"
    for words in COMMANDS:
        told = [word.replace("OUT", str(out)) for word in words]
        place = 2 if told[0] == "alerts" else 1
        assert main([*told[:place], str(folder.path), *told[place:]]) in {0, 3}, words
    for route in ROUTES:
        more = {"format": "json"} if route == "export" else {}
        assert client.get(f"/api/{route}", query={"run": "p/run", **more}).status == 200, route
    for path in ("/api/runs", "/api/events?run=p%2Frun&kind=stalled"):
        assert client.get(path).status == 200, path
    with connect(folder.path.parents[1]) as database:
        assert database.query("SELECT count(*) FROM events WHERE data IS NOT NULL").rows


def test_an_event_called_like_ours_stays_the_users(tmp_path):
    """A user's `stalled` or `exception` is listed; no ledger, diagnosis or state takes it for what the watcher saw."""
    folder = make_run(tmp_path, "run", "p")
    seal_points(folder, points_of({"step_seconds": np.full(50, 0.01)}))
    names = ("stalled", "hung", "ended", "exception", "out_of_memory", "worker_died", "alert")
    written(folder, [(name, {"seconds": "about ten", "alert": "mine"}, True) for name in names])
    past = open_run(folder.path)
    assert [event["kind"] for event in past.events()] == list(names)
    assert past.diagnose()["findings"] == []
    assert attempts_of(past)[0].stalls == []
    assert alerts_of(past.events()) == []
