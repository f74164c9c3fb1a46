"""What the routes answer, beside what the store and the command line say."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

import stepscope
from stepscope.store.layout import RunFolder
from stepscope.store.reader import Past
from stepscope.store.sinks import WAITING, SinkState
from stepscope.views.overview import overview
from tests.exporters.recorded import make_run, points_of, seal_points, tell
from tests.web.messages import curves
from tests.web.served import EMPTY, OTHER, RUN, SPIKE, Client, listed, ready, started


@pytest.fixture(scope="module")
def past(root):
    return stepscope.open(root / RUN)


@pytest.mark.promise("S1-044")
def test_the_list_has_every_run_with_its_figures(client):
    """A row has state, step, duration, and what its points say: rate, loss now and best, and its shape."""
    rows = {row["key"]: row for row in client.get("/api/runs").json["rows"]}
    card = rows[RUN]["card"]
    assert set(rows) == {RUN, OTHER, EMPTY}
    assert rows[RUN]["state"] == "finished"
    assert card["loss"]["name"] == "loss"
    assert card["loss"]["best"] == pytest.approx(2 + np.exp(-2999 / 500))
    assert card["rate"] == pytest.approx(1000)
    assert len(card["spark"]) == 40
    assert rows[EMPTY]["card"]["loss"] is None
    assert rows[EMPTY]["card"]["spark"] == []


def test_the_list_is_asked_for_what_changed(root, tmp_path):
    """With the version of the last answer only new and changed rows come; nothing changed is a 304."""
    server = started(tmp_path)
    try:
        client = Client(server)
        make_run(tmp_path, "first")
        server.site.runs.scan()
        ready(server)
        before = client.get("/api/runs").json
        assert client.get("/api/runs", query={"since": before["version"]}).status == 304
        make_run(tmp_path, "second")
        server.site.runs.scan()
        after = client.get("/api/runs", query={"since": before["version"]}).json
        assert [row["id"] for row in after["rows"]] == ["second"]
        ready(server)
        for path in sorted((tmp_path / "mnist" / "first").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "mnist" / "first").rmdir()
        server.site.runs.scan()
        assert client.get("/api/runs", query={"since": after["version"]}).json["gone"] == ["mnist/first"]
    finally:
        server.stop()


@pytest.mark.promise("S1-001", "S1-045", "S0-081")
def test_series_are_those_of_the_store(client, past):
    """Curves in the binary form hold the numbers that `stepscope.open` gives, whole or as buckets."""
    found = curves(client.get("/api/series", query={"run": RUN, "name": "loss", "points": 4000}).body)[0]
    series = past.series("loss")
    assert (found["kind"], found["points"], found["seq"]) == ("points", 3000, 2999)
    for key in ("step", "time", "value"):
        np.testing.assert_array_equal(found[key], getattr(series, key))
    coarse = curves(client.get("/api/series", query={"run": RUN, "name": "loss", "points": 100}).body)[0]
    assert coarse["kind"] == "buckets"
    assert coarse["n"] <= 100
    assert coarse["count"].sum() == 3000
    at = int(np.argmax(coarse["max"]))
    assert (coarse["max"][at], coarse["max_step"][at]) == (SPIKE, 1234)


def test_series_of_several_runs_and_of_a_range(client):
    """Runs and names are answered together, a range bounds both axes, samples of the machine have no step."""
    query = {"run": [RUN, OTHER], "name": ["loss", "accuracy"], "from": 100, "to": 199, "points": 1000}
    found = curves(client.get("/api/series", query=query).body)
    assert [(one["run"], one["name"], one["n"]) for one in found] == [
        (RUN, "accuracy", 100),
        (RUN, "loss", 100),
        (OTHER, "loss", 100),
    ]
    machine = curves(client.get("/api/series", query={"run": RUN, "name": "cpu/usage_ratio"}).body)[0]
    assert np.isnan(machine["step"]).all()
    assert machine["rank"] == -1
    assert curves(client.get("/api/series", query={"run": RUN, "name": "nothing"}).body) == []


def test_folded_ranks_have_no_rank(client):
    """A band over the ranks is one curve without a rank."""
    found = curves(client.get("/api/series", query={"run": RUN, "name": "loss", "fold": "ranks", "points": 50}).body)
    assert [(one["rank"], one["kind"]) for one in found] == [(None, "buckets")]


def test_the_head_says_what_show_says(client, past):
    """State, step times, phases and throughput of the first screen are those of `stepscope show`."""
    head = client.get("/api/run", query={"run": RUN}).json
    shown = overview(past)
    assert head["run"]["key"] == RUN
    assert head["status"]["state"] == shown["state"]
    assert head["time"] == json.loads(json.dumps(shown["time"]))
    assert head["throughput"] == json.loads(json.dumps(shown["throughput"]))
    assert head["important"][0] == "loss"
    assert [number["key"] for number in head["numbers"]][:3] == ["step", "loss", "best"]
    assert head["changes"][0]["text"] == "saved a checkpoint"


def test_the_head_has_the_sinks(client, root):
    """The first screen has what the senders wrote, merged over nodes; a run without sinks has none."""
    assert client.get("/api/run", query={"run": RUN}).json["sinks"] == []
    for node in ("a", "b"):
        late = {"why": "no route", "behind_rows": 5, "behind_seconds": 9.0}
        SinkState(node, "mlflow-0", "mlflow", state=WAITING, **late).save(RunFolder(root / OTHER))
    [sink] = client.get("/api/run", query={"run": OTHER}).json["sinks"]
    assert (sink["name"], sink["state"], sink["why"], sink["behind_rows"]) == (
        "mlflow",
        "not answering",
        "no route",
        10,
    )


def test_the_processes_of_a_run_are_listed(client):
    """Each rank's process is in the answer about the machine."""
    found = client.get("/api/machine", query={"run": RUN}).json
    assert [one["rank"] for one in found["processes"]] == [0]


def test_metrics_are_told_with_what_they_mean(client):
    """Each metric has unit, help, group and source; the important ones are marked."""
    found = client.get("/api/names", query={"run": RUN}).json
    rows = {row["name"]: row for row in found["metrics"]}
    assert found["metrics"][0]["name"] == "loss"
    assert rows["phase/forward"]["source"] == "phase"
    assert rows["phase/forward"]["unit"] == "seconds"
    assert rows["loss"]["important"]
    assert rows["loss"]["count"] == 3000


@pytest.mark.promise("S1-048")
def test_exports_hold_every_point(client, past):
    """CSV, JSON lines and JSON have the same values as the run; only the metrics asked for."""
    series = past.series("loss")
    query = {"run": RUN, "name": "loss"}
    table = list(csv.DictReader(io.StringIO(client.get("/api/export", query={**query, "format": "csv"}).body.decode())))
    assert [float(row["value"]) for row in table] == series.value.tolist()
    lines = client.get("/api/export", query={**query, "format": "jsonl"}).body.splitlines()
    assert [json.loads(line)["value"] for line in lines] == series.value.tolist()
    whole = client.get("/api/export", query={**query, "format": "json"}).json
    assert whole["metrics"]["loss"]["value"] == series.value.tolist()
    assert client.get("/api/export", query={**query, "format": "parquet"}).body[:4] == b"PAR1"
    assert client.get("/api/export", query={"run": RUN, "name": "nothing", "format": "csv"}).status == 404


def test_the_report_is_offered(client):
    """The report of a run is one of the downloads: a whole HTML file."""
    answer = client.get("/api/export", query={"run": RUN, "format": "html"})
    assert answer.status == 200
    assert answer.body.startswith(b"<!doctype html>")
    assert b"</html>" in answer.body


def test_recipes_give_the_same_numbers(client, past, root):
    """The Python and the SQL that are told give the points of the chart."""
    from stepscope.store.sql import connect

    query = {"run": RUN, "name": "loss", "from": 10, "to": 29}
    told = client.get("/api/recipe", query=query).json
    scope = {}
    exec(compile(told["python"], "recipe", "exec"), scope)
    expected = past.series("loss", step_range=(10, 29)).value.tolist()
    assert scope["series"].value.tolist() == expected
    with connect(root) as database:
        rows = database.query(told["sql"]).rows
        assert [row[-1] for row in rows] == expected


def test_runs_are_compared(client):
    """Settings that differ come first, quantities have a value for each run, and phases stand side by side."""
    found = client.get("/api/compare", query={"run": [RUN, OTHER]}).json
    assert found["config"][0] == {"key": "lr", "values": [0.1, 0.2], "same": False}
    assert found["config"][1]["same"]
    step = next(row for row in found["numbers"] if row["name"] == "step_seconds")
    assert [value["value"] for value in step["values"]] == pytest.approx([0.001, 0.002])
    assert step["differences"][1]["verdict"] == "slower"
    assert step["better"] == "lower"
    names = [row["name"] for row in found["numbers"]]
    quality = [name for name in names if name.startswith("loss@")]
    assert names[: len(quality)] == quality != []
    assert {row["better"] for row in found["numbers"][: len(quality)]} == {"lower"}
    assert [phase["phase"] for phase in found["phases"][0]] == ["forward"]


def test_what_is_not_there_is_404(client):
    """An unknown run, route or file is told as such."""
    for path in ("/api/run?run=nothing", "/api/nothing", "/api/", "/assets/nothing.js"):
        assert client.get(path).status == 404
    assert client.get("/api/run").status == 400


def test_not_finite_is_null(tmp_path):
    """JSON has no NaN: a loss that became NaN is null, with its best value kept."""
    folder = make_run(tmp_path)
    seal_points(folder, points_of({"loss": [3.0, 2.0, np.nan, np.inf]}))
    server = started(tmp_path)
    try:
        ready(server)
        card = Client(server).get("/api/runs").json["rows"][0]["card"]
        assert card["loss"] == {"name": "loss", "last": None, "best": 2.0}
    finally:
        server.stop()


def test_histograms_are_thinned_out(tmp_path):
    """The histograms of one name come in order, no more than asked for, the last one among them."""
    folder = make_run(tmp_path)
    for step in range(20):
        tell(folder, "histogram", name="weights", edges=[0, 1], counts=[step], step=step, sequence=step)
    server = started(tmp_path)
    try:
        ready(server)
        found = Client(server).get("/api/histograms", query={"run": "mnist/run-1", "limit": 5}).json
        steps = [row["step"] for row in found["rows"]]
        assert found["names"] == ["weights"]
        assert len(steps) <= 5
        assert steps == sorted(steps)
        assert steps[-1] == 19
    finally:
        server.stop()


def test_a_thousand_folders_some_broken(tmp_path):
    """The list is complete with broken, empty and half-written folders in it, each with its reason."""
    for number in range(50):
        make_run(tmp_path, f"run-{number:04}")
    for name, text in (("torn", '{"format": 1, "id": '), ("foreign", "[]"), ("newer", '{"format": 99, "id": "newer"}')):
        folder = tmp_path / "mnist" / name
        folder.mkdir()
        (folder / "run.json").write_text(text)
    (tmp_path / "mnist" / "unborn" / "tail").mkdir(parents=True)
    server = started(tmp_path)
    try:
        listed(server)
        found = Client(server).get("/api/runs").json
        broken = {row["id"]: row["cause"] for row in found["rows"] if row["state"] == "broken"}
        assert found["total"] == 54
        assert set(broken) == {"torn", "foreign", "newer", "unborn"}
        assert "newer than ours" in broken["newer"]
        assert "no run.json" in broken["unborn"]
    finally:
        server.stop()


def test_a_run_being_read_needs_no_watcher(root):
    """Reading changes nothing in a run's folder."""
    folder = RunFolder(root / RUN)
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.path.rglob("*"))
    assert Past(folder).names()
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.path.rglob("*")) == before
