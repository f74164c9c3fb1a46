"""A server over a few small runs, and a client that sends exactly the bytes it is told to."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from urllib.parse import quote, urlencode

import msgspec
import numpy as np

from stepscope.web.access_policy import ADMIN
from stepscope.web.handlers import JSON
from stepscope.web.router import ROUTES
from stepscope.web.server import Server, ServerOptions
from tests.exporters.recorded import leave_tail, make_run, points_of, seal_points, tell
from tests.integration.processes import until

RUN, OTHER, EMPTY = "mnist/run-1", "mnist/run-2", "mnist/empty"
SPIKE = 1000.0
GETS = (
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/api/server",
    "/api/runs",
    f"/api/run?run={quote(RUN, safe='')}",
    f"/api/names?run={quote(RUN, safe='')}",
    f"/api/series?run={quote(RUN, safe='')}&name=loss",
    f"/api/live?run={quote(RUN, safe='')}",
    f"/api/events?run={quote(RUN, safe='')}",
    f"/api/histograms?run={quote(RUN, safe='')}",
    f"/api/machine?run={quote(RUN, safe='')}",
    f"/api/alerts?run={quote(RUN, safe='')}",
    f"/api/diagnosis?run={quote(RUN, safe='')}",
    f"/api/ledger?run={quote(RUN, safe='')}",
    f"/api/recipe?run={quote(RUN, safe='')}&name=loss",
    f"/api/compare?run={quote(RUN, safe='')}&run={quote(OTHER, safe='')}",
    f"/api/export?run={quote(RUN, safe='')}&format=csv",
    "/",
    "/index.html",
    "/nothing",
)
"""A question to every route."""
DATA = tuple(path for path in GETS if path.startswith(("/api/", "/metrics", "/openapi")))


def make_runs(root):
    """Write a run of 3000 steps with a spike, a shorter one to compare with, and one without points."""
    steps = np.arange(3000)
    loss = 2.0 + np.exp(-steps / 500)
    loss[1234] = SPIKE
    folder = make_run(root, config={"lr": 0.1, "layers": 3})
    durations = {"step_seconds": np.full(3000, 0.001), "phase/forward": np.full(3000, 0.0007)}
    seal_points(folder, points_of({"loss": loss, "accuracy": 1 - loss / 4000, **durations}))
    leave_tail(folder, [{"cpu/usage_ratio": 0.5}, {"cpu/usage_ratio": 0.25}], rank=-1)
    tell(folder, "checkpoint", text="saved a checkpoint")
    other = make_run(root, "run-2", config={"lr": 0.2, "layers": 3})
    seal_points(other, points_of({"loss": loss[:2000] * 0.9, "step_seconds": np.full(2000, 0.002)}))
    make_run(root, "empty")
    return folder


CONTRACT = {route.path: route.responses.get(JSON) for route in ROUTES if route.method == "GET"}
"""Type of the JSON that each route returns."""


class Answer:
    """A response; JSON of a success must have the type that the route declares."""

    def __init__(self, response, path=""):
        self.status, self.headers, self.body = response.status, response.headers, response.read()
        kind = CONTRACT.get(path.partition("?")[0])
        if self.status == 200 and kind is not None and self.headers.get("content-type") == JSON:
            msgspec.json.decode(self.body, type=kind)

    @property
    def json(self):
        """The body as JSON."""
        return json.loads(self.body)


class Client:
    """Asks a server; each question has a connection of its own."""

    def __init__(self, server, address="127.0.0.1"):
        """Ask as the page of its owner does, with the cookie; given only a port, as somebody without any token."""
        self.port, self.address = getattr(server, "port", server), address
        rules = getattr(server, "policy", None)
        self._cookie = f"{rules.cookie_name}={rules.cookie_for(ADMIN)}" if rules else None

    def get(self, path, headers=None, *, query=None, method="GET", body=None, host=None):
        """Send a request; `host` None is that of the server, empty leaves the header out."""
        if query is not None:
            path = f"{path}?{urlencode(query, doseq=True)}"
        connection = http.client.HTTPConnection(self.address, self.port, timeout=120)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            connection.putheader("Host", host if host is not None else f"127.0.0.1:{self.port}")
            if self._cookie and "Cookie" not in (headers or {}):
                connection.putheader("Cookie", self._cookie)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            return Answer(connection.getresponse(), path if method == "GET" else "")
        finally:
            connection.close()

    def post(self, path, facts, headers=None):
        """Send JSON as the page of this server does."""
        own = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{self.port}", **(headers or {})}
        return self.get(
            path, own, method="POST", body=facts if isinstance(facts, bytes) else json.dumps(facts).encode()
        )

    def send(self, data, seconds=120.0):
        """Send raw bytes and return all that comes back until the server closes."""
        found = b""
        with (
            socket.create_connection((self.address, self.port), seconds) as connection,
            contextlib.suppress(ConnectionError),  # it was closed before we had sent everything
        ):
            connection.sendall(data)
            while part := connection.recv(65536):
                found += part
        return found


def ready(server):
    """Wait until the list of runs is complete and every card is read."""

    def is_complete():
        found = server.site.runs.rows()
        return found["complete"] and not found["reading"] and all(row["card"] for row in found["rows"])

    until(is_complete, "a complete list of runs")


def listed(server):
    """Wait until the folder of runs was looked through once."""
    until(lambda: server.site.runs.complete, "a list of runs")


def started(root, **options):
    """Return a server that runs in a thread, on a free port."""
    server = Server(ServerOptions(root, port=0, **options))
    server.start()
    return server
