"""Servers that sinks send to: real ones, and programs of our own that take everything, or hang.

`python -m bench.sink_servers take|hang` prints its port and serves OTLP, remote write 2.0 and MLflow until killed.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from bench.processes import environment, python, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

START_SECONDS = 90.0
"""Seconds that a loaded machine may take to start a server."""
MLFLOW = "/api/2.0/mlflow/"
WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
Reply = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


class Server(ThreadingHTTPServer):
    """A server on a port of its own, or on a given one."""

    daemon_threads = True
    request_queue_size = 20

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that was killed in the middle of a request."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Reads a request and answers with what `reply` returns; the connection stays open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = self.reply(body)
        if found is not None:
            self.answer(*found)

    def do_GET(self) -> None:
        """Answer."""
        self.do_POST()

    def reply(self, body: bytes) -> Reply | None:
        """Return status, headers and body; None if there is no answer."""
        raise NotImplementedError

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send an answer, unless the client is gone."""
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if status != http.client.NO_CONTENT:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Taking(Handler):
    """Says yes to all three kinds of sinks."""

    runs: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - of the whole process

    def reply(self, body: bytes) -> Reply:
        """Answer as the server does that the path belongs to."""
        parts = urlsplit(self.path)
        if parts.path.startswith(MLFLOW):
            told = self.of_mlflow(parts.path.removeprefix(MLFLOW), parse_qs(parts.query), body)
            return 200, {"Content-Type": "application/json"}, json.dumps(told).encode()
        if parts.path.endswith("/write"):
            return 204, {WRITTEN: "999999999"}, b""
        return 200, {"Content-Type": "application/x-protobuf"}, b""

    def of_mlflow(self, path: str, query: dict[str, list[str]], body: bytes) -> dict[str, Any]:
        """Return what MLflow would."""
        if path == "experiments/get-by-name":
            return {"experiment": {"experiment_id": "1", "lifecycle_stage": "active"}}
        if path == "runs/search":
            return {"runs": list(self.runs.values())}
        if path == "runs/get":
            return {"run": self.runs[query["run_id"][0]]}
        if path == "runs/create":
            info = {"run_id": f"{len(self.runs):032x}", "experiment_id": "1", "status": "RUNNING"}
            self.runs[info["run_id"]] = {"info": info, "data": {"tags": json.loads(body).get("tags", [])}}
            return {"run": self.runs[info["run_id"]]}
        return {}


class Hanging(Handler):
    """Takes a request and never answers."""

    def reply(self, body: bytes) -> None:
        """Wait for the client to give up."""
        del body
        with contextlib.suppress(OSError):
            self.connection.recv(1)
        self.close_connection = True


@contextlib.contextmanager
def receivers(how: str = "take") -> Iterator[int]:
    """Start a process that takes everything, or hangs; yield its port."""
    process = python("-m", "bench.sink_servers", how, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def blackhole() -> Iterator[int]:
    """Yield a port at which a connection is neither taken nor refused: its queue is full."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            one = stack.enter_context(socket.socket())
            one.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                one.connect(listening.getsockname())
        time.sleep(0.05)
        yield listening.getsockname()[1]


def free_port() -> int:
    """Return a port at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetched(url: str) -> bytes | None:
    """Return the body of a page; None while there is none."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - ours
            return bytes(answer.read())
    except OSError:
        return None


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[int | None]:
    """Start MLflow on SQLite with one worker; yield its port, None if it is not installed."""
    if importlib.util.find_spec("mlflow") is None:
        yield None
        return
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    switches = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    store = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    with _running([*command, *store], folder, f"http://127.0.0.1:{port}/health", switches):
        yield port


@contextlib.contextmanager
def prometheus_server(folder: Path) -> Iterator[int | None]:
    """Start Prometheus with a remote write receiver; yield its port, None if it is not installed."""
    if shutil.which("prometheus") is None:
        yield None
        return
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "empty.yml").touch()
    command = [
        *("prometheus", f"--config.file={folder}/empty.yml", f"--storage.tsdb.path={folder}/data"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver"),
    ]
    with _running(command, folder, f"http://127.0.0.1:{port}/-/ready", {}):
        yield port


@contextlib.contextmanager
def _running(command: list[str], folder: Path, ready: str, more: dict[str, str]) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, start_new_session=True, env=environment(**more)
        )
    try:
        wait_until(lambda: process.poll() is not None or fetched(ready) is not None, START_SECONDS, 0.2)
        if fetched(ready) is None:
            raise RuntimeError(f"{command[0]} did not start: {(folder / 'log').read_text(errors='replace')[-1000:]}")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)  # a session of its own: MLflow has workers
        process.wait()


def main(arguments: list[str]) -> int:
    """Serve until killed."""
    server = Server(("127.0.0.1", 0), Taking if arguments[0] == "take" else Hanging)
    print(server.server_address[1], flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
