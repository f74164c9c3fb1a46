"""A web proxy before one sink that makes faults: errors, hangs, lies, cuts, and a server that is gone for seconds."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import Counter
from http import HTTPStatus
from typing import TYPE_CHECKING

from bench.sink_servers import Handler, Server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.sink_servers import Reply

ERROR, BUSY, HANG, DIE, LIE, CUT, LOST = KINDS = ("error", "busy", "hang", "die", "lie", "cut", "lost")
"""500; 429 with Retry-After; no answer; nobody listens; 200 with a login page; cut before, and after, forwarding."""
PARTIAL = "partial"
"""The receiver drops some points and says so: only OTLP can."""
REJECT = "X-Bench-Reject"
"""Header that tells our OTLP receiver how many points to drop."""
SHARE, MLFLOW_SHARE = 0.3, 0.1
"""Share of the requests that meet a fault, while there are faults left; a batch for MLflow takes several requests."""
HANG_SECONDS = 3.0
"""Seconds without an answer before the connection is cut: a sender waits for up to 30."""
LOGIN = b"<!DOCTYPE html><html><body>Please log in</body></html>"
HOP = frozenset(("connection", "host", "content-length", "transfer-encoding", "keep-alive", "date", "server"))


def drawn(seed: int, count: int, sinks: Sequence[str]) -> dict[str, list[str]]:
    """Return the faults of each sink, so many in all: every kind about equally often, in a drawn order."""
    draw = random.Random(seed)
    found: dict[str, list[str]] = {}
    for number, sink in enumerate(sinks):
        kinds = [*KINDS, *([PARTIAL] if sink == "otlp" else [])]
        draw.shuffle(kinds)
        many = count // len(sinks) + (number < count % len(sinks))
        found[sink] = [kinds[at % len(kinds)] for at in range(many)]
        draw.shuffle(found[sink])
    return found


class FaultyProxy:
    """Forwards requests to a local server, and makes its faults on the way."""

    def __init__(self, upstream: int, faults: Sequence[str], seed: int, share: float = SHARE) -> None:
        """Listen on a port of its own; `upstream` is that of the server, `share` that of the requests with a fault."""
        self.upstream, self._faults, self._draw, self._share = upstream, list(faults), random.Random(seed), share
        self._lock = threading.Lock()
        self._pending = len(self._faults)
        self.healed = 0.0
        """When (monotonic seconds) the last fault was over."""
        self.done: Counter[str] = Counter()
        proxy = self

        class Faulty(Handler):
            def reply(self, body: bytes) -> Reply | None:
                return proxy.reply(self, body)

        self._handler = Faulty
        self._server = Server(("127.0.0.1", 0), Faulty)
        self.port = int(self._server.server_address[1])
        self._serve()

    def _serve(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def is_healed(self) -> bool:
        """Whether all faults are over."""
        return self._pending == 0

    def reply(self, handler: Handler, body: bytes) -> Reply | None:
        """Forward a request, or make a fault."""
        with self._lock:
            fault = self._faults.pop() if self._faults and self._draw.random() < self._share else ""
            number, seconds = self._draw.randint(1, 20), self._draw.uniform(1.0, 3.0)
        if not fault:
            return self._forwarded(handler, body)
        try:
            return self._fault(fault, handler, body, number, seconds)
        finally:
            with self._lock:
                self.done[fault] += 1
                self._pending -= 1
                self.healed = time.monotonic()

    def _fault(self, fault: str, handler: Handler, body: bytes, number: int, seconds: float) -> Reply | None:
        if fault == ERROR:
            return 500, {"Content-Type": "text/plain"}, b"internal error"
        if fault == BUSY:
            return 429, {"Content-Type": "text/plain", "Retry-After": "1"}, b"too many requests"
        if fault == LIE:
            return 200, {"Content-Type": "text/html"}, LOGIN
        if fault == PARTIAL:
            return self._forwarded(handler, body, {REJECT: str(number)})
        if fault == LOST:
            self._forwarded(handler, body)
        elif fault == HANG:
            time.sleep(HANG_SECONDS)
        elif fault == DIE:
            self._server.shutdown()
            self._server.server_close()
        self._cut(handler)
        if fault == DIE:
            time.sleep(seconds)
            self._server = Server(("127.0.0.1", self.port), self._handler)
            self._serve()
        return None

    def _cut(self, handler: Handler) -> None:
        handler.close_connection = True
        try:
            handler.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the client was faster

    def _forwarded(self, handler: Handler, body: bytes, more: dict[str, str] | None = None) -> Reply | None:
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP} | (more or {})
        upstream = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        try:
            upstream.request(handler.command, handler.path, body or None, headers)
            answer = upstream.getresponse()
            content = answer.read()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        except OSError:
            return HTTPStatus.BAD_GATEWAY, {"Content-Type": "text/plain"}, b"bad gateway"
        finally:
            upstream.close()
        return answer.status, kept, content

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
