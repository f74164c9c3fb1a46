"""MonitoringDashboard: two graphs of rows that a program passes in."""

from __future__ import annotations

import datetime as dt
import math
import socket
import threading

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.web import MonitoringDashboard
from stepscope.web.dashboard import PAGE
from tests.integration.processes import free_port, until
from tests.web.served import Client

ROW = {"timestamp": 1000.0, "loss": 0.5, "cpu_percent": 40.0, "gpu_memory": 1024.0}


@pytest.mark.promise("S0-039", "S0-040")
def test_it_begins_empty_under_its_heading():
    """It has an application, an empty list of rows, and the heading of the documents, which can be another."""
    dashboard = MonitoringDashboard()
    assert dashboard.metrics_data == []
    assert callable(dashboard.app)
    assert dashboard.heading == "Stepscope Training Monitor"
    assert MonitoringDashboard("Mine").heading == "Mine"


@pytest.mark.promise("S0-042")
def test_the_graph_of_the_loss():
    """Title, axes, trace and mode are those of the documents."""
    dashboard = MonitoringDashboard()
    dashboard.metrics_data += [ROW, {**ROW, "timestamp": 1005.0, "loss": 0.25}]
    figure = dashboard.create_loss_graph()
    (trace,) = figure["data"]
    assert (trace["name"], trace["mode"], trace["x"], trace["y"]) == (
        "Training Loss",
        "lines+markers",
        [1000.0, 1005.0],
        [0.5, 0.25],
    )
    assert figure["layout"] == {
        "title": "Training Loss Over Time",
        "xaxis": {"title": "Time"},
        "yaxis": {"title": "Loss"},
    }


@pytest.mark.promise("S0-043")
def test_the_graph_of_the_resources():
    """Processor and GPU memory, the latter on its own axis at the right."""
    dashboard = MonitoringDashboard()
    dashboard.metrics_data.append(ROW)
    figure = dashboard.create_resource_graph()
    assert [trace["name"] for trace in figure["data"]] == ["CPU Usage", "GPU Memory"]
    assert [trace.get("yaxis") for trace in figure["data"]] == [None, "y2"]
    layout = figure["layout"]
    assert (layout["title"], layout["yaxis"]["title"]) == ("Resource Usage", "CPU Usage (%)")
    assert layout["yaxis2"] == {"title": "GPU Memory (MB)", "overlaying": "y", "side": "right"}


@pytest.mark.promise("S0-045")
@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{}],
        [{"loss": None}],
        [{"loss": math.nan, "timestamp": "never"}],
        [{"loss": "x", "gpu_memory": {"0": 5, "1": 6, "2": None}}],
        [{"timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)}],
        [None, 3, []],
    ],
)
def test_missing_data_leaves_gaps(rows):
    """Empty data, missing columns and values that are no numbers raise nothing and show as gaps."""
    dashboard = MonitoringDashboard()
    dashboard.metrics_data = rows
    for figure in (dashboard.create_loss_graph(), dashboard.create_resource_graph()):
        for trace in figure["data"]:
            assert len(trace["x"]) == len(trace["y"]) == len(rows)
            assert all(value is None or math.isfinite(value) for value in [*trace["x"], *trace["y"]])


@pytest.mark.promise("S0-041", "S0-044", "S0-046", "X-02")
def test_it_is_served_with_its_elements(capsys):
    """The page has the ids of the documents, asks anew every 5 s, and needs nothing from elsewhere; loopback only."""
    defaults = MonitoringDashboard.run.__defaults__
    assert defaults == ("localhost", 8050)
    port = free_port()
    dashboard = MonitoringDashboard()
    dashboard.metrics_data.append(ROW)
    made = []
    original = dashboard.server
    dashboard.server = lambda rules: made.append(original(rules)) or made[0]
    thread = threading.Thread(target=dashboard.run, kwargs={"port": port}, daemon=True)
    thread.start()
    until(lambda: made and made[0].started, "the server")
    out = capsys.readouterr().out
    client, bearer = Client(port), {"Authorization": f"Bearer {out.split('token=')[1].strip()}"}
    try:
        text = client.get("/").body.decode()
        assert all(f'id="{name}"' in text for name in ("loss-graph", "resource-graph", "interval-component"))
        assert 'data-interval="5000"' in text
        assert "://" not in text
        assert client.get("/dashboard.js").status == client.get("/dashboard.css").status == 200
        told = client.get("/figures", bearer).json
        assert client.get("/figures").status == 401
        assert told["heading"] == "Stepscope Training Monitor"
        assert told["loss"]["data"][0]["y"] == [0.5]
        assert client.get("/figures", host="evil.example").status == 421
        assert client.get("/figures", {"Origin": "http://evil.example"}).status == 403
    finally:
        made[0].should_exit = True
        thread.join(60)
    assert str(port) in out
    assert (PAGE / "index.html").is_file()


def test_a_taken_port_is_told():
    """A port that is taken is said, with who has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(StepscopeError, match="in use by process"):
        MonitoringDashboard().run(port=taken.getsockname()[1])
