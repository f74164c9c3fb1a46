from __future__ import annotations

import base64
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.mlflow import api as mlflow_api
from stepscope.exporters.sinks.mlflow import server as mlflow
from stepscope.exporters.sinks.sink import (
    RunNews,
    SentRow,
    SinkDeniesError,
    SinkDownError,
    SinkError,
    SinkRefusesError,
)
from tests.exporters.sinks.batches import RUN, batch_of
from tests.exporters.sinks.mlflow_cases import ROWS, sink_at

INFO = {"run_id": "r1", "experiment_id": "7", "status": "RUNNING", "lifecycle_stage": "active"}
KNOWN = {"run_id": "r1", "experiment_id": "7"}
SECRET = "correct-horse-battery"
HTML = (200, {"Content-Type": "text/html"}, b"<html>please log in</html>")


class FakeServer:
    """A web server that answers as MLflow does, until `answers` has something else for a path."""

    def __init__(self):
        self.asked, self.answers = [], {}
        self.run = {"info": dict(INFO), "data": {}}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = urlsplit(self.path).path.partition("/mlflow/")[2]
                owner.asked.append((path, json.loads(body) if body else None, self.headers.get("Authorization")))
                answer = owner.answer(path)
                if answer is None:
                    self.close_connection = True
                    self.connection.close()
                    return
                status, headers, content = answer
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET  # noqa: N815 - the name is the base class's

            def log_message(self, *args):
                pass

            def handle(self):
                with contextlib.suppress(OSError, ValueError):  # the connection that was cut
                    super().handle()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def answer(self, path):
        given = self.answers.get(path)
        if isinstance(given, list):
            given = given.pop(0) if given else ()
        if given is None and path in self.answers:
            return None
        if given:
            return given
        usual = {
            "experiments/get-by-name": {"experiment": {"experiment_id": "7", "lifecycle_stage": "active"}},
            "runs/search": {"runs": [self.run]},
            "runs/get": {"run": self.run},
            "experiments/search": {"experiments": []},
        }
        return 200, {}, json.dumps(usual.get(path, {})).encode()

    def sent(self):
        return [body for path, body, _ in self.asked if path == "runs/log-batch"]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def error(code, status, message="because", **headers):
    return status, headers, json.dumps({"error_code": code, "message": message}).encode()


@pytest.fixture
def fake():
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def opened(fake):
    sink = sink_at(f"mlflow+http://127.0.0.1:{fake.port}")
    sink.open(RUN, KNOWN)
    yield sink
    sink.close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((500, {}, b"oops"), SinkDownError),
        (error("INTERNAL_ERROR", 500), SinkDownError),
        (error("TEMPORARILY_UNAVAILABLE", 503), SinkDownError),
        (error("REQUEST_LIMIT_EXCEEDED", 429), SinkDownError),
        (HTML, SinkDownError),
        ((200, {}, b"OK"), SinkDownError),
        ((200, {}, b""), SinkDownError),
        ((200, {}, b'{"status": "ok"}'), SinkDownError),
        ((200, {}, b"[" * 100_000), SinkDownError),
        (error("INTERNAL_ERROR", 200), SinkDownError),
        (None, SinkDownError),
        (error("INVALID_PARAMETER_VALUE", 400), SinkRefusesError),
        (error("RESOURCE_DOES_NOT_EXIST", 404), SinkDeniesError),
        (error("PERMISSION_DENIED", 403), SinkDeniesError),
        ((401, {}, b"You are not authenticated"), SinkDeniesError),
        ((404, {}, b"not found"), SinkDeniesError),
        ((302, {"Location": "/login"}, b""), SinkDeniesError),
    ],
)
def test_each_answer_has_its_meaning(fake, opened, answer, kind):
    """Only what MLflow says when it has taken points counts as taken; other answers mean later, never, or not us."""
    fake.answers["runs/log-batch"] = answer
    with pytest.raises(kind):
        opened.send(batch_of(ROWS))


def test_the_wait_that_a_server_asks_for_is_kept(fake, opened):
    """Retry-After of a busy server reaches the sender."""
    fake.answers["runs/log-batch"] = error("REQUEST_LIMIT_EXCEEDED", 429, **{"Retry-After": "7"})
    with pytest.raises(SinkDownError) as caught:
        opened.send(batch_of(ROWS))
    assert caught.value.retry_after == 7


def test_points_that_were_confirmed_are_not_sent_again(fake, opened):
    """After a failure in the middle of a batch, the same batch continues where it failed."""
    batch = batch_of(SentRow(0, 0, n, n, 1_795_000_000 + n, {"a": float(n)}) for n in range(2500))
    fake.answers["runs/log-batch"] = [(), (503, {}, b"")]
    with pytest.raises(SinkDownError):
        opened.send(batch)
    opened.send(batch)
    counts = [len(body["metrics"]) for body in fake.sent()]
    assert counts == [1000, 1000, 1000, 500]
    assert fake.sent()[1] == fake.sent()[2]


def test_a_request_whose_answer_was_lost_is_not_made_again(fake, opened):
    """MLflow is slow to find out that it has points: after a failure we ask for them first."""
    batch = batch_of(SentRow(0, 0, n, n, 1_795_000_000 + n, {"a": float(n), "b": 1.0}) for n in range(10))
    fake.answers["runs/log-batch"] = [None, None]  # a kept connection may have been closed before: it is tried again
    with pytest.raises(SinkDownError):
        opened.send(batch)
    stored = [metric for metric in fake.sent()[0]["metrics"] if metric["key"] == "a" and metric["step"] < 9]
    fake.run["data"]["metrics"] = [stored[-1]]
    fake.answers["metrics/get-history-bulk-interval"] = (200, {}, json.dumps({"metrics": stored}).encode())
    opened.send(batch)
    again = fake.sent()[-1]["metrics"]
    assert sorted((metric["key"], metric["step"]) for metric in again) == [("a", 9), *(("b", n) for n in range(10))]


def test_an_old_server_gets_uncertain_points_in_small_requests(fake, opened):
    """Where MLflow cannot say which points it has, it gets few at once, so that each request ends in time."""
    fake.run["data"]["metrics"] = [{"key": "a", "value": 1.0, "timestamp": 1_795_000_900_000, "step": 500}]
    fake.answers["metrics/get-history-bulk-interval"] = (404, {}, b"")
    opened.open(RUN, KNOWN)
    opened.send(batch_of(SentRow(0, 0, n, n, 1_795_000_000 + n, {"a": 1.0}) for n in range(120)))
    assert [len(body["metrics"]) for body in fake.sent()] == [50, 50, 20]


def test_a_deleted_run_denies(fake, opened):
    """A run that was deleted in MLflow is not created again: the sink waits until it is restored."""
    fake.run["info"]["lifecycle_stage"] = "deleted"
    fake.run["data"]["tags"] = [{"key": "stepscope.run", "value": RUN.identity}]
    fake.answers["runs/log-batch"] = error("INVALID_PARAMETER_VALUE", 400, "must be in the 'active' state")
    for call in (
        lambda: opened.send(batch_of(ROWS)),
        lambda: opened.report(RunNews(config={"a": 1})),
        lambda: opened.open(RUN, KNOWN),
        lambda: opened.open(RUN, {}),
    ):
        with pytest.raises(SinkDeniesError, match="deleted"):
            call()
    assert "runs/create" not in [path for path, *_ in fake.asked]


def test_two_nodes_that_create_a_run_use_the_same(fake, monkeypatch):
    """If another node created a run in the same moment, both choose the same one, and the other is deleted."""
    monkeypatch.setattr(mlflow.MlflowSink, "settle", 0.0)
    tags = [{"key": "stepscope.run", "value": RUN.identity}]
    two = [{"info": {**INFO, "run_id": name}, "data": {"tags": tags}} for name in ("r2", "r1")]
    none, both = ((200, {}, json.dumps(found).encode()) for found in ({}, {"runs": two}))
    fake.answers["runs/search"] = [none, both]
    fake.answers["runs/create"] = (200, {}, json.dumps({"run": two[0]}).encode())
    sink = sink_at(f"mlflow+http://127.0.0.1:{fake.port}")
    assert sink.open(RUN, {})["run_id"] == "r1"
    assert ("runs/delete", {"run_id": "r2"}, None) in fake.asked
    sink.close()


def test_an_experiment_that_another_process_creates_first_is_used(fake, monkeypatch):
    """Creating an experiment may be lost to another process: then it is looked up again."""
    missing, found = error("RESOURCE_DOES_NOT_EXIST", 404), ()
    fake.answers["experiments/get-by-name"] = [missing, found]
    fake.answers["experiments/create"] = error("RESOURCE_ALREADY_EXISTS", 400)
    fake.run["data"]["tags"] = [{"key": "stepscope.run", "value": RUN.identity}]
    sink = sink_at(f"mlflow+http://127.0.0.1:{fake.port}/base/?experiment=mine")
    link = f"http://127.0.0.1:{fake.port}/base/#/experiments/7/runs/r1"
    assert sink.open(RUN, {}) == {"run_id": "r1", "experiment_id": "7", "link": link}
    sink.close()


def test_a_parameter_that_another_node_wrote_goes_to_a_tag(fake, opened):
    """A parameter with another value in MLflow is not an error: the value of now is a tag."""
    fake.run["data"]["params"] = [{"key": "lr", "value": "1"}]
    fake.answers["runs/log-batch"] = [error("INVALID_PARAMETER_VALUE", 400, "Changing param values is not allowed")]
    opened.report(RunNews(config={"lr": 2}))
    assert {"key": "stepscope.config.lr", "value": "2"} in fake.sent()[-1]["tags"]


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        ((401, {}, b"You are not authenticated"), SinkDeniesError, r"refuses our user, password or token \(401\)"),
        ((403, {}, b"Invalid Host header"), SinkDeniesError, r"\(403\): Invalid Host header"),
        ((404, {}, b"<html>none</html>"), SinkDeniesError, "answered 404"),
        (HTML, SinkDownError, "no MLflow answers at .*: .* a web page that is not from MLflow"),
        ((200, {}, b'{"hello": 1}'), SinkDownError, "no MLflow answers at"),
    ],
)
def test_a_probe_says_why_not(fake, answer, kind, text):
    """A probe gives one line that says what is wrong, with the place."""
    fake.answers["experiments/search"] = answer
    with pytest.raises(kind, match=text) as caught:
        sink_at(f"mlflow+http://127.0.0.1:{fake.port}").probe()
    assert f"127.0.0.1:{fake.port}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_probe_of_nothing_says_so(fake):
    """A port on which nothing listens is named, with the reason."""
    fake.close()
    with pytest.raises(SinkDownError, match=rf"127.0.0.1:{fake.port}: .*refused"):
        sink_at(f"mlflow+http://127.0.0.1:{fake.port}").probe()


def _basic(user, password):
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


@pytest.mark.parametrize("source", ["address", "variables", "file", "token", "netrc"])
def test_credentials_are_found_and_kept_secret(fake, tmp_path, source):
    """Credentials come from where MLflow's client has them, are read again at each open, and are in no error."""
    environ = {"HOME": str(tmp_path)}
    at = "127.0.0.1"
    if source == "address":
        at, environ = f"me:${{PASSWORD}}@{at}", environ | {"PASSWORD": SECRET}
    elif source == "variables":
        environ |= {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": SECRET}
    elif source == "token":
        environ |= {"MLFLOW_TRACKING_TOKEN": SECRET}
    elif source == "netrc":
        (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    else:
        (tmp_path / ".mlflow").mkdir()
        text = f"[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = {SECRET}\n"
        (tmp_path / ".mlflow" / "credentials").write_text(text)
    sink = sink_at(f"mlflow+http://{at}:{fake.port}", environ)
    header = f"Bearer {SECRET}" if source == "token" else _basic("me", SECRET)
    link = sink.open(RUN, KNOWN)["link"]
    assert {given for *_, given in fake.asked} == {header}
    errors = [link, repr(sink.address)]
    said = f"no {SECRET} or {header}".encode()
    for path in ("runs/get", "runs/log-batch", "experiments/search"):
        for answer in (
            error("INVALID_PARAMETER_VALUE", 400, said.decode()),
            (401, {}, said),
            (500, {}, said),
            (418, {}, said),
        ):
            fake.answers[path] = answer
            for call in (sink.probe, lambda: sink.open(RUN, KNOWN), lambda: sink.send(batch_of(ROWS))):
                try:
                    call()
                except SinkError as failed:
                    errors.append(str(failed))
            fake.answers.clear()
    assert len(errors) > 10
    for text in errors:
        assert SECRET not in text
        assert header.partition(" ")[2] not in text
    sink.close()


def test_a_rotated_token_is_used_at_the_next_open(fake, tmp_path):
    """A token in a file may change: each open reads it again."""
    token = tmp_path / "token"
    token.write_text("me:first")
    sink = sink_at(f"mlflow+http://${{file:{token}}}@127.0.0.1:{fake.port}")
    sink.open(RUN, KNOWN)
    token.write_text("me:second")
    sink.open(RUN, KNOWN)
    assert [given for *_, given in fake.asked] == [_basic("me", "first"), _basic("me", "second")]
    sink.close()


@pytest.mark.parametrize("token", [f"{SECRET}\nX-Evil: 1", f"{SECRET}é"])
def test_a_token_that_no_header_can_hold_is_denied(fake, token):
    """A broken token is named, not shown."""
    sink = sink_at(f"mlflow+http://127.0.0.1:{fake.port}", {"HOME": "/nonexistent", "MLFLOW_TRACKING_TOKEN": token})
    with pytest.raises(SinkDeniesError, match="MLFLOW_TRACKING_TOKEN") as caught:
        sink.open(RUN, KNOWN)
    assert SECRET not in str(caught.value)
    assert not fake.asked


def test_a_call_has_one_deadline_for_all_its_requests(fake, opened, monkeypatch):
    """A slow server cannot hold a call for longer than it may take, however many requests it makes."""
    now = [100.0]
    monkeypatch.setattr(mlflow_api.time, "monotonic", lambda: now[0])
    batch = batch_of(SentRow(0, 0, n, n, 1_795_000_000 + n, {"a": float(n)}) for n in range(2500))
    usual = fake.answer

    def slow(path):
        now[0] += 15
        return usual(path)

    fake.answer = slow
    with pytest.raises(SinkDownError, match="in time"):
        opened.send(batch)
    assert len(fake.sent()) == 2


def test_wrong_addresses_are_usage_errors():
    """An address without a host, or with an unknown option, is refused before anything is sent."""
    for url in ("mlflow+http://", "mlflow+http://host:1?experment=a", "mlflow+sqlite://host/a.db", "mlflow+sqlite:///"):
        with pytest.raises(UsageError):
            sink_at(url)
