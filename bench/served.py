"""`stepscope serve` and small live trainings as processes of their own, for the figures and tests of the page."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any

from bench.processes import environment, python

if TYPE_CHECKING:
    from pathlib import Path

START_SECONDS = 120.0
TRAINER = """
import json, sys, threading, time
import stepscope
charts, rate = int(sys.argv[1]), float(sys.argv[2])
run = stepscope.init(project="live", name="live", run_id="live", dir=sys.argv[3], config={"charts": charts})
print(run.path, flush=True)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
names, began, costs, step = [f"metric/{index:03}" for index in range(charts)], time.monotonic(), [], 0
while not stop.is_set():
    with run.step():
        values = {name: (step * (place + 3)) % 97 for place, name in enumerate(names)}
        before = time.thread_time_ns()
        run.log({"clock": time.time() % 100, "loss": 2 + 8 / (1 + step), **values})
        costs.append(time.thread_time_ns() - before)
    step += 1
    stop.wait(max(0.0, began + step / rate - time.monotonic()))
run.finish()
costs.sort()
print(json.dumps({"steps": step, "seconds": time.monotonic() - began, "log_ns": costs[len(costs) // 4]}), flush=True)
"""
"""Logs metrics at a rate until its standard input is closed; `clock` is the time of the call modulo 100 s, whose
hundredths a page shows."""


def free_port() -> int:
    """Return a port of the loopback that nobody uses, and that the system gives to nobody who asks for just any."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)  # ports for just anybody begin at 32768
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def token_of(scratch: Path, port: int) -> str:
    """Return the token of a server whose runtime folder lies in `scratch`; an OSError until it is there."""
    return (scratch / "runtime" / f"serve-{port}.token").read_text().strip()


class Server:
    """One server over a folder of runs; a context manager that leaves no process behind."""

    def __init__(self, root: Path, scratch: Path, *options: str) -> None:
        """Start it on a free port and wait until it answers; its log goes to `scratch`."""
        self.port = free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        self.log = scratch / f"serve-{self.port}.log"
        self._scratch = scratch
        environ = environment(STEPSCOPE_RUNTIME_DIR=str(scratch / "runtime"), HOME=str(scratch))
        words = ("-m", "stepscope", "serve", str(root), "--port", str(self.port), *options)
        with self.log.open("wb") as log:
            quiet = {"stdout": log, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            self.process = python(*words, env=environ, cwd=scratch, **quiet)
        self._await()

    def __enter__(self) -> Server:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def _await(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.origin}/healthz", timeout=10):  # noqa: S310 - our own origin
                return
            time.sleep(0.02)
        said = self.log.read_text(encoding="utf-8", errors="replace")
        self.stop()
        raise RuntimeError(f"stepscope serve does not answer: {said}")

    @property
    def bearer(self) -> dict[str, str]:
        """The header that shows the token of this server."""
        return {"Authorization": f"Bearer {token_of(self._scratch, self.port)}"}

    def page(self, place: str = "") -> str:
        """Return the address of a place of the page (`#/…`), with the token."""
        return f"{self.origin}/?token={token_of(self._scratch, self.port)}{place}"

    def get(self, path: str) -> Any:
        """Return an answer of the API."""
        return json.loads(self.read(path))

    def read(self, path: str) -> bytes:
        """Return the bytes of an answer."""
        asked = urllib.request.Request(f"{self.origin}{path}", headers=self.bearer)  # noqa: S310 - our own origin
        with urllib.request.urlopen(asked, timeout=120) as answer:  # noqa: S310 - our own origin
            return bytes(answer.read())

    def keys(self) -> dict[str, str]:
        """Return the key of each run by its name, once the list is complete."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            listed = self.get("/api/runs")
            if listed["complete"]:
                return {row["name"]: row["key"] for row in listed["rows"]}
            time.sleep(0.05)
        raise RuntimeError("the list of runs is never complete")

    def key_of(self, run_id: str) -> str:
        """Return the key of a run, given by its id, once the list is complete."""
        self.keys()
        return next(row["key"] for row in self.get("/api/runs")["rows"] if row["id"] == run_id)

    def key(self, name: str) -> str:
        """Return the key of a run, as soon as the server lists it."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            found = self.keys().get(name)
            if found:
                return found
            time.sleep(0.1)
        raise RuntimeError(f"the server does not list the run {name}")

    def stop(self) -> None:
        """End it as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Trainer:
    """A live training of some metrics, logged so many times a second."""

    def __init__(self, root: Path, charts: int, rate: float) -> None:
        """Start it and wait until it records into project `live` of `root`."""
        environ = environment()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = python("-c", TRAINER, str(charts), str(rate), str(root), env=environ, **pipes)
        self.path = (self.process.stdout.readline() if self.process.stdout else "").strip()

    def __enter__(self) -> Trainer:  # noqa: PYI034 - typing.Self needs Python 3.11
        return self

    def stop(self) -> dict[str, Any]:
        """End it and return its steps, seconds, and log_ns, the lower quartile of the CPU time of one call."""
        said, _ = self.process.communicate(timeout=120)
        return dict(json.loads(said)) if said.strip() else {}

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
                self.process.communicate(timeout=120)
            self.process.kill()
            self.process.wait()
