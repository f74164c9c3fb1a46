"""`stepscope export --to` and `stepscope tee`: a run goes to another tool, and people read what became of it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from stepscope.cli.main import main
from stepscope.store.sinks import DENIED, WAITING, lock_path
from stepscope.watcher import sender
from tests.exporters.recorded import WRITER, leave_tail, make_run
from tests.exporters.sinks.web_server import Reply, WebServer


@pytest.fixture
def folder(tmp_path):
    """A run with ten rows."""
    folder = make_run(tmp_path / "runs")
    leave_tail(folder, [{"loss": float(number)} for number in range(10)])
    return folder


@pytest.fixture
def send(folder, capfdbinary):
    """Run a command for the run, and return its exit code, its output and its errors."""

    def call(command, *arguments):
        root = folder.path.parent.parent
        code = main([command, "run-1", "--dir", str(root), *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


def rows_in(place):
    lines = [line for path in sorted(place.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    records = map(json.loads, lines)
    return [record["metrics"]["loss"] for record in records if "loss" in record.get("metrics", {})]


def test_a_finished_run_is_sent_once(send, tmp_path):
    """All rows arrive, and a second call adds none."""
    url = f"trackio://?dir={tmp_path / 'trackio'}"
    assert send("export", "--to", url) == (0, "trackio: 10 rows sent\n", "")
    assert send("export", "--to", url)[0] == 0
    assert sorted(rows_in(tmp_path / "trackio")) == [float(number) for number in range(10)]


@pytest.mark.parametrize("state", [WAITING, DENIED])
def test_what_an_earlier_sender_met_does_not_count(send, folder, state):
    """The sink was down for a sender that is gone: the command asks it anew, and does not give up at once."""
    with WebServer(Reply(200)) as server:
        url = f"otlp+http://127.0.0.1:{server.port}"
        assert send("export", "--to", url)[0] == 0
        path = next((folder.path / "sinks").rglob("*.json"))
        facts = {**json.loads(path.read_text()), "sent": {}, "state": state, "why": "it was down", "since": 1.0}
        path.write_text(json.dumps(facts))
        code, out, err = send("export", "--to", url)
    assert (code, err) == (0, "")
    assert "rows sent" in out


def test_a_slow_sink_is_waited_for(send):
    """A sink that has not answered yet is not one that does not answer."""

    def slowly(*_):
        threading.Event().wait(1.0)
        return Reply(200)

    with WebServer(slowly) as server:
        code, _, err = send("export", "--to", f"otlp+http://127.0.0.1:{server.port}")
    assert (code, err) == (0, "")


def test_a_sink_that_denies_us_ends_the_export_with_its_reason(send):
    """The reason is one sentence, without the password, and said once."""
    with WebServer(Reply(401, b"no")) as server:
        code, out, err = send("export", "--to", f"otlp+http://bob:pa55w0rd@127.0.0.1:{server.port}")
    assert (code, out) == (1, "")
    cause = "cannot send the run to otlp: the server answered 401: no"
    assert err == f"stepscope: {cause}; the same command goes on where this one stopped\n"


@pytest.mark.parametrize("command", ["export", "tee"])
@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("foo://x", "there is no sink foo://"),
        ("mlflow+http://", "its address has no host"),
        ("mlflow+http://127.0.0.1?experimnt=x", "the unknown option 'experimnt'"),
        ("mlflow+sqlite:///", "its address names no file"),
        ("prometheus+http://127.0.0.1?token=${STEPSCOPE_NO_SUCH}", "the variable STEPSCOPE_NO_SUCH is not set"),
        ("mlflow+http://bob:pa55@w0rd/x#y@127.0.0.1", "its address is malformed"),
        ("mlflow+http://bob:pa55?w0rd@127.0.0.1", "its address is malformed"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_at_once(send, command, url, cause):
    """Nothing is tried, and no part of a password is repeated."""
    code, _, err = send(command, "--to", url)
    assert code == 2
    assert cause in err
    assert len(err.splitlines()) == 1
    assert not any(part in err for part in ("pa55", "w0rd"))


def test_a_run_that_another_process_sends_is_left_to_it(folder, send, tmp_path):
    """Two senders would send every row twice."""
    url = f"trackio://?dir={tmp_path / 'trackio'}"
    assert send("export", "--to", url)[0] == 0
    key = next((folder.path / "sinks").iterdir()).name
    code = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, 2); print(flush=True); input()"
    command = [sys.executable, "-c", code, lock_path(folder, key, WRITER.node)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        code, _, err = send("tee", "--to", url)
        holder.communicate(b"\n")
    assert code == 1
    assert "another process sends it to trackio already" in err


def test_the_command_ends_without_a_word_of_its_libraries(folder, tmp_path):
    """A thread that is left behind would let DuckDB print what it still holds."""
    command = [sys.executable, "-m", "stepscope", "export", str(folder.path), "--to", f"trackio://?dir={tmp_path}"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (found.stdout, found.stderr) == ("trackio: 10 rows sent\n", "")


def test_lanes_end_when_they_are_told_to(folder):
    """A stopped sender leaves no thread behind, whatever its sinks say."""
    found = sender.Sender(print)

    class Lane:
        is_done, problems, due = False, [], time.time() + 3600
        address = type("Address", (), {"name": "x"})
        is_closed = False

        def turn(self):
            """Do nothing."""

        def fail(self, error):
            raise error

        def close(self):
            self.is_closed = True

    lane = Lane()
    found.add(lane)
    found.stop(5.0)
    assert lane.is_closed
