from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections import Counter
from dataclasses import replace

import pytest

from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.sink import AlertChange, RunNews, SentRow, SinkDeniesError, SinkDownError
from stepscope.exporters.sinks.table import new_sink
from stepscope.exporters.sinks.wandb.children import started_by
from stepscope.exporters.sinks.wandb.terms import run_id
from tests.exporters.sinks.batches import RUN, batch_of
from tests.exporters.sinks.wandb_server import KEY, WandbServer

pytest.importorskip("wandb")
pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def server():
    made = WandbServer()
    yield made
    made.close()


@pytest.fixture
def make(tmp_path):
    """Return a maker of sinks that upload to a server; what they leave running is ended."""
    sinks = []

    def made(url, mode="online"):
        environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "WANDB_API_KEY": KEY, "WANDB_SERVICE": "bad"}
        sinks.append(new_sink(address_of(f"wandb://ada/p?mode={mode}&dir={tmp_path}&base_url={url}"), environ))
        return sinks[-1]

    yield made
    for sink in sinks:
        sink.stop()


def kill(pid):
    for one in (pid, *started_by(pid)):
        with contextlib.suppress(OSError):  # it has ended
            os.kill(one, signal.SIGKILL)


def rows_of(first, count):
    return [SentRow(0, 0, seq, seq, RUN.created + seq, {"a": float(seq)}) for seq in range(first, first + count)]


def test_a_run_is_uploaded_whole(server, make):
    """Each row, the summary, the alert and the end arrive; the run of a script around us is not meant."""
    sink = make(server.url)
    known = sink.open(RUN, {})
    assert known["link"] == f"{server.url}/ada/p/runs/{run_id(RUN)}"
    sink.send(batch_of(rows_of(0, 50)))
    sink.report(RunNews(alerts=[AlertChange("1", "nan", "critical", "firing", "loss is NaN", 1.0, 3)]))
    sink.report(RunNews("finished", verdict="All well."))
    sink.close()
    assert [row["stepscope/row"] for row in server.lines] == [row.id for row in rows_of(0, 50)]
    assert [row["_step"] for row in server.lines] == list(range(50))
    run = server.runs[run_id(RUN)]
    assert (run["displayName"], run["groupName"], run["tags"]) == ("first try", "seeds", ["baseline", "gpu"])
    assert run["summary"]["stepscope/verdict"] == "All well."
    assert [alert["title"] for alert in server.alerts] == ["nan in first try"]
    assert server.exits == [0]


def test_what_a_killed_helper_left_is_uploaded(server, make):
    """Rows that were confirmed but not uploaded are uploaded by the next helper, before new ones, and exist once."""
    sink = make(server.url)
    sink.open(RUN, {})
    server.is_deaf = True
    sink.send(batch_of(rows_of(0, 30)))
    kill(sink.helper_pid)
    server.is_deaf = False
    with contextlib.suppress(SinkDownError):
        sink.send(batch_of(rows_of(20, 20)))
    sink.send(batch_of(rows_of(20, 20)))
    kill(sink.helper_pid)
    sink = make(server.url)
    sink.open(RUN, {})
    sink.report(RunNews("failed"))
    sink.close()
    found = Counter(row["stepscope/row"] for row in server.history())
    assert found == Counter(row.id for row in rows_of(0, 40))
    assert server.exits[-1] == 1


def test_an_end_that_is_not_uploaded_is_tried_again(server, make, monkeypatch):
    """While the server takes nothing, `close` is down in time; a new sink ends the run as it was reported before."""
    sink = make(server.url)
    sink.open(RUN, {})
    server.is_deaf = True
    sink.send(batch_of(rows_of(0, 5)))
    sink.report(RunNews("finished"))
    monkeypatch.setattr("stepscope.exporters.sinks.wandb.sink.BUDGET", 6.0)
    with pytest.raises(SinkDownError):
        sink.close()
    assert sink.helper_pid is None
    monkeypatch.undo()
    server.is_deaf = False
    again = make(server.url)
    again.open(RUN, {})
    again.close()
    assert [row["stepscope/row"] for row in server.history()] == [row.id for row in rows_of(0, 5)]
    assert server.exits[-1] == 0


def test_a_dead_server_is_down_in_time(make, monkeypatch):
    """Nobody listens, or nobody answers: the call ends at its deadline, and leaves no process."""
    monkeypatch.setattr("stepscope.exporters.sinks.wandb.sink.BUDGET", 6.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port in (silent.getsockname()[1], 9):
            sink = make(f"http://127.0.0.1:{port}")
            start = time.monotonic()
            with pytest.raises(SinkDownError):
                sink.open(RUN, {})
            assert time.monotonic() - start < 12
            assert sink.helper_pid is None or not started_by(sink.helper_pid)


def test_a_wrong_key_is_told_without_it(make, server):
    """W&B refuses a malformed key: somebody must change it; the text does not show it."""
    sink = make(server.url)
    sink.environ["WANDB_API_KEY"] = "tooshortsecret"
    with pytest.raises(SinkDeniesError) as reported:
        sink.open(RUN, {})
    assert "tooshortsecret" not in str(reported.value)


def test_several_nodes_write_one_run(server, make):
    """In shared mode a second node adds its rows to the run, and does not end it."""
    first, second = make(server.url, "shared"), make(server.url, "shared")
    first.open(RUN, {})
    second.open(replace(RUN, is_first=False, node="b"), {})
    first.send(batch_of(rows_of(0, 3)))
    second.send(batch_of([SentRow(1, 0, 0, 0, RUN.created, {"a": 5.0})]))
    for sink in (second, first):
        sink.report(RunNews("finished"))
        sink.close()
    assert {row["stepscope/row"] for row in server.lines} == {"0.0.0", "0.0.1", "0.0.2", "1.0.0"}
    assert list(server.runs) == [run_id(RUN)]
