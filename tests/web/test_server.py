"""Starting and stopping: addresses, ports, the page of a program, and what is told when something is in the way."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from stepscope.cli.main import main
from stepscope.core.access import token_path
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.session import page
from stepscope.web import training_server
from stepscope.web.listening import owner_of
from stepscope.web.server import Server, ServerOptions, configured
from stepscope.web.static_files import StaticFiles
from tests.integration.processes import until
from tests.web.served import GETS, RUN, Client, ready, started

pytestmark = pytest.mark.processes


@pytest.mark.promise("S1-042")
def test_a_taken_port_names_who_has_it(root, capsys):
    """`cannot serve on 8080: in use by …; use --port`, with exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(root), "--port", str(port)]) == 1
        told = capsys.readouterr().err
        assert f"cannot serve on {port}: in use by process {os.getpid()}" in told
        assert "use --port" in told
        assert owner_of(port).startswith(f"process {os.getpid()} (")


@pytest.mark.parametrize(("host", "port", "kind"), [("203.0.113.7", 0, UsageError), ("127.0.0.1", 70000, UsageError)])
def test_an_address_that_is_not_ours(tmp_path, monkeypatch, host, port, kind):
    """An address of another machine, or no port at all, is a wrong question."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(kind):
        Server(configured(str(tmp_path), host, port))


@pytest.mark.promise("S1-054", "X-02")
@pytest.mark.promise("S1-043")
def test_the_configuration_says_where(tmp_path, monkeypatch):
    """`dashboard.host`, `.port` and `.refresh_interval` are taken; without them it is 127.0.0.1:8080."""
    assert (configured(str(tmp_path)).host, configured(str(tmp_path)).port) == ("127.0.0.1", 8080)
    path = tmp_path / "settings.yaml"
    path.write_text("dashboard:\n  enabled: true\n  host: localhost\n  port: 8081\n  refresh_interval: 5\n")
    monkeypatch.setenv("STEPSCOPE_CONFIG", str(path))
    found = configured(str(tmp_path))
    assert (found.host, found.port, found.refresh) == ("localhost", 8081, 5.0)
    assert configured(str(tmp_path), port=9000).port == 9000


def test_the_program_serves_until_it_is_interrupted(root):
    """`stepscope serve` prints its address, answers, and ends with 0 on Ctrl-C, leaving nothing behind."""
    words = [sys.executable, "-m", "stepscope", "serve", str(root), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        port = int(line.partition("/?token=")[0].rpartition(":")[2])
        assert str(root) in line
        assert Client(port).get("/healthz").status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert process.returncode in {0, 130}
        assert errors == ""
    finally:
        process.kill()
        process.communicate()


def test_the_page_is_served_from_memory(tmp_path):
    """Files come with their type, compressed where asked for, for ever where their name has a digest; 304 if known."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>" + "x" * 2000)
    (tmp_path / "assets" / "app-1.js").write_text("let x = 1;\n" * 200)
    files = StaticFiles(tmp_path)
    script = files.answer("/assets/app-1.js", "gzip, br")
    assert script.headers["content-encoding"] == "gzip"
    assert script.headers["content-type"].startswith("text/javascript")
    assert "immutable" in script.headers["cache-control"]
    assert files.answer("/assets/app-1.js", "", script.headers["etag"]).status_code == 304
    assert files.answer("/any/place").body == (tmp_path / "index.html").read_bytes()
    assert files.answer("/any/place").headers["cache-control"] == "no-cache"
    assert files.answer("/nothing.js").status_code == 404


def test_a_deep_path_leads_to_the_page(root):
    """The page looks for its files beside itself: whoever asks for it below a folder is sent up to where it is."""
    server = started(root)
    try:
        answer = Client(server).get("/run/demo/overview")
        assert answer.status == 307
        assert answer.headers["location"] == "../../"
        assert Client(server).get("/run/demo/nothing.js").status == 404
    finally:
        server.stop()


def test_without_a_page_it_says_how_to_build_it(root, tmp_path):
    """An installation without the built page answers with what to do; its data is there."""
    server = started(root, files=StaticFiles(tmp_path / "nothing"))
    try:
        answer = Client(server).get("/")
        assert answer.status == 200
        assert b"make page" in answer.body
        assert b"/api/runs" in answer.body
    finally:
        server.stop()


@pytest.mark.parametrize("path", GETS)
def test_head_has_no_body(client, path):
    """HEAD is answered as GET is, without the body."""
    answer = client.get(path, method="HEAD")
    assert answer.status == 200
    assert answer.body == b""


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "POST"])
def test_other_methods_are_refused(client, method):
    """Nothing but GET and HEAD is answered by a route that only tells something."""
    own = {"Origin": f"http://127.0.0.1:{client.port}"}
    assert client.get("/api/runs", own, method=method).status == 405


@pytest.mark.promise("X-11")
def test_the_heading_is_told(tmp_path):
    """The heading of the page is configurable."""
    server = started(tmp_path, heading="Our runs")
    try:
        assert Client(server).get("/api/server").json["heading"] == "Our runs"
    finally:
        server.stop()


def test_a_training_starts_one_server_for_its_folder(tmp_path):
    """The first run starts a server and says where the page is; while that lives, the next only say so."""
    begun, said = [], []
    page.serve_beside(tmp_path, "127.0.0.1", 0, "0.5", "", start=lambda *words: begun.append(words), say=said.append)
    ((module, root, host, port, lock, *_),) = begun
    assert (module, root, host) == (page.MODULE, str(tmp_path), "127.0.0.1")
    assert said == [f"the page is at http://127.0.0.1:{port}/ and asks for the token in {token_path(int(port))}"]
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        page.serve_beside(tmp_path, "127.0.0.1", 0, start=lambda *words: begun.append(words), say=said.append)
        assert (len(begun), said[-1]) == (
            1,
            f"the page is at http://127.0.0.1:1234/ and asks for the token in {token_path(1234)}",
        )
    finally:
        holder.communicate()
    assert page.address_in(page.lock_path(tmp_path)) is None


HOLD = """
import sys
from pathlib import Path
from stepscope.web.training_server import locked
import os
descriptor = locked(Path(sys.argv[1]))
os.pwrite(descriptor, b"http://127.0.0.1:1234/\\n", 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_training_that_cannot_serve_says_so(tmp_path):
    """Where no process can be started, or the address is not ours, the training goes on and is told."""
    said = []
    page.serve_beside(tmp_path, "203.0.113.7", 8080, start=lambda *_words: None, say=said.append)
    assert said[0].startswith("cannot serve the page: ")


def test_the_server_of_a_training_ends_when_nobody_needs_it(root, tmp_path):
    """It ends when no run goes on and nobody has asked for a while, and gives up its lock."""
    lock = tmp_path / "lock"
    descriptor = training_server.locked(lock)
    assert descriptor is not None
    server = Server(ServerOptions(root, port=0))
    ended = threading.Event()
    runner = threading.Thread(target=lambda: (server.run(), ended.set()))
    server._uvicorn.handles_signals = False
    runner.start()
    try:
        training_server.end_when_idle(server, idle=0.0, poll=0.05)
        assert ended.wait(60)
    finally:
        server.stop()
        runner.join()
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def test_a_server_in_a_thread_ends_with_it(root):
    """A server beside other work stops when told, frees its port, and leaves no thread."""
    before = {thread.name for thread in threading.enumerate()}
    server = started(root)
    ready(server)
    assert Client(server).get("/api/run", query={"run": RUN}).status == 200
    server.stop()

    def left():
        names = {thread.name for thread in threading.enumerate()} - before
        return {name for name in names if "reader" not in name}  # those end with what they read

    until(lambda: not left(), "the end of the threads")
    with socket.create_server(("127.0.0.1", server.port)):
        pass
    with pytest.raises(StepscopeError):
        started(root, host="256.256.256.256")
