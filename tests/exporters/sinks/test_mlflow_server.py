from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from stepscope.exporters.sinks.mlflow.names import CUT
from stepscope.exporters.sinks.mlflow.server import MlflowSink
from stepscope.exporters.sinks.sink import AlertChange, RunNews, SinkDeniesError, SinkDownError
from tests.exporters.sinks.batches import RUN, batch_of
from tests.exporters.sinks.mlflow_cases import ROWS, SAME, expected, read, sink_at
from tests.integration.processes import until

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a real MLflow server with one worker."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    switches = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, *store],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **switches},
        )
    try:
        sink = sink_at(f"mlflow+http://127.0.0.1:{port}")

        def answers():
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            with contextlib.suppress(SinkDownError):
                return sink.probe()
            return ""

        until(answers, lambda: f"the server: {(folder / 'log').read_text()[-2000:]}", every=0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """No other node creates the same run, except where a test says so."""
    monkeypatch.setattr(MlflowSink, "settle", 0.0)


def run_of(name, **facts):
    return replace(RUN, id=name, project=name, **facts)


def call(server, path, **given):
    """Change something in the server as a person would."""
    sink = sink_at(f"mlflow+{server}")
    sink.open(run_of("person"), {})
    sink._api.post(path, given)
    sink.close()


def test_mlflow_has_every_point_once(server):
    """What MLflow's own client reads is what was recorded, also if all was sent twice and the sender was killed."""
    run = run_of("points")
    sink = sink_at(f"mlflow+{server}", prefix="p/")
    known = sink.open(run, {})
    assert sink.send(batch_of(ROWS)).merged == 0
    assert sink.send(batch_of(ROWS)).merged == 0
    assert sink.send(batch_of(SAME)).merged == 2
    sink.close()
    again = sink_at(f"mlflow+{server}", prefix="p/")
    assert again.open(run, {}) == known
    again.send(batch_of(SAME + ROWS))
    again.close()
    found = read(server, known["run_id"])
    assert found["points"] == expected(ROWS + SAME, "p/")
    assert found["latest"]["p/loss"] == repr(1 / 40)
    assert found["runs"] == [known["run_id"]]
    assert found["info"]["start_time"] == 1_795_000_000_250


def test_a_reopened_sink_asks_before_it_sends_again(server):
    """Points that MLflow has are not sent to it again after a restart."""
    run = run_of("asks")
    sink = sink_at(f"mlflow+{server}")
    known = sink.open(run, {})
    sink.send(batch_of(ROWS))
    sink.open(run, known)
    sent = []
    sink._log = sent.append
    sink.send(batch_of(ROWS))
    assert sent == []
    sink.close()


def test_news_are_told_and_told_again(server):
    """State, parameters, tags and alerts arrive; saying them again, or changing a setting, is no error."""
    run = run_of("news", notes='it\'s a "test"')
    sink = sink_at(f"mlflow+{server}?experiment=My%20experiment")
    known = sink.open(run, {})
    config = {
        "lr": 1,
        "long": "é" * 9000,
        "empty": "",
        "deep": {f"k{n}": "\N{GRINNING FACE}" * 3000 for n in range(120)},
    }
    sink.report(RunNews(config=config, tags=("baseline", "gpu")))
    alert = AlertChange("1", "loss/nan", "critical", "firing", "loss is NaN", 1_795_000_001, 7)
    news = RunNews(
        "failed", "ValueError", 1_795_000_002.5, "x" * 9000, [alert], config | {"lr": 2}, ("odd % tag",), "new"
    )
    sink.report(news)
    sink.open(run, known)
    sink.report(news)
    sink.close()
    found = read(server, known["run_id"])
    assert found["experiment"] == "My experiment"
    assert (found["info"]["status"], found["info"]["end_time"]) == ("FAILED", 1_795_000_002_500)
    assert len(found["params"]) == 123
    assert (found["params"]["lr"], found["params"]["empty"]) == ("1", "")
    assert found["params"]["long"].endswith(CUT)
    tags = found["tags"]
    assert tags["stepscope.config.lr"] == "2"
    assert tags["stepscope.alert.loss/nan"] == "firing since 2026-11-18T11:06:41Z (critical, step 7): loss is NaN"
    assert tags["mlflow.note.content"].startswith("new\n\n[Open in Stepscope]")
    [own] = [key for key in tags if key.startswith("stepscope.tag.")]
    assert own.startswith("stepscope.tag.odd _ tag-")
    assert len(tags["stepscope.verdict"]) == 8000


def test_nodes_that_start_together_share_one_run(server, monkeypatch):
    """Four nodes that create the run in the same moment end up with one."""
    monkeypatch.setattr(MlflowSink, "settle", 2.0)
    run = run_of("together")
    sinks = [sink_at(f"mlflow+{server}") for _ in range(4)]
    found = []
    threads = [threading.Thread(target=lambda sink=sink: found.append(sink.open(run, {})["run_id"])) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert (
        len(
            [
                one
                for one in sinks[0]._tagged(sinks[0]._experiment("together"), run.identity)
                if one["info"]["lifecycle_stage"] == "active"
            ]
        )
        == 1
    )
    for sink in sinks:
        sink.close()


def test_what_was_deleted_is_not_created_again(server):
    """A run or an experiment that was deleted in MLflow denies, with a text that says so."""
    run = run_of("deleted")
    sink = sink_at(f"mlflow+{server}")
    known = sink.open(run, {})
    call(server, "runs/delete", run_id=known["run_id"])
    with pytest.raises(SinkDeniesError, match="run was deleted"):
        sink.send(batch_of(ROWS))
    with pytest.raises(SinkDeniesError, match="run was deleted"):
        sink.open(run, known)
    call(server, "runs/restore", run_id=known["run_id"])
    assert sink.open(run, known) == known
    sink.send(batch_of(ROWS))
    call(server, "experiments/delete", experiment_id=known["experiment_id"])
    with pytest.raises(SinkDeniesError, match="experiment deleted was deleted"):
        sink.open(run, {})
    sink.close()


def test_a_probe_creates_nothing(server):
    """A probe names the server, and leaves no experiment behind."""
    sink = sink_at(f"mlflow+{server}?experiment=never")
    assert sink.probe() == f"MLflow at {server.removeprefix('http://')}"
    other = sink_at(f"mlflow+{server}")
    other.open(run_of("person"), {})
    assert other._api.get("experiments/get-by-name", experiment_name="never") == {}
    other.close()
