"""A page for Prometheus over HTTP, served between the ticks of a loop that has other work to do.

There is no thread and no `http.server`: the loop calls `poll` where it would have slept, so draining and scraping never
run at once. It listens on loopback unless a token guards it, and answers only GET and HEAD of `/metrics` and
`/healthz`.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from typing import TYPE_CHECKING

from stepscope.core.access import is_loopback
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.exporters.prometheus.request import Reply, Rules, answer, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

PORTS = 100
"""Ports that are tried, one after another, before the system chooses."""
CONNECTIONS = 16
"""Maximum open connections; beyond it, the one that has waited longest is closed."""
REQUEST_BYTES = 8192
"""Maximum size of a request with its headers."""
SECONDS = 5.0
"""Time to receive a request, and time to send an answer."""
CHUNK = 65536
BUSY = {errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL}


class _Connection:
    """One client: it sends a request, gets one answer, and is closed."""

    def __init__(self, client: socket.socket, deadline: float) -> None:
        self.client, self.deadline = client, deadline
        self.received = bytearray()
        self.answer = memoryview(b"")
        """The part of the answer that is still to be sent; empty until the request was read."""


class Endpoint:
    """The listening socket and its few clients."""

    def __init__(
        self,
        page: Callable[[str], tuple[str, bytes]],
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        token: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen on a port, or on the next one that is free; 0 is any.

        `page` takes a scrape's `Accept` header and returns content type and body. A token, which clients send as
        `Authorization: Bearer`, is required if the address is not loopback.

        Raises:
            UsageError: the address can be reached from elsewhere, and no token is given.
            StepscopeError: it is impossible to listen there.
        """
        if not is_loopback(host) and not token:
            remedy = "listen on 127.0.0.1, or give a token that Prometheus sends as its credentials"
            raise UsageError(f"serve metrics on {host}", "others on the network could read them", remedy)
        self._page, self._clock = page, clock
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._rules = Rules(host, token)
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)
        self._open: dict[int, _Connection] = {}
        self.scrapes, self.failures = 0, 0
        """Pages that were requested, and those of them that could not be made."""

    @property
    def target(self) -> str:
        """Address and port as Prometheus and browsers write them; loopback where all addresses are listened on."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - no bind
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def descriptors(self) -> dict[int, int]:
        """Return the listening socket and the open connections, with the events of `select.poll` they wait for."""
        waiting = {number: select.POLLOUT if one.answer else select.POLLIN for number, one in self._open.items()}
        return {self._socket.fileno(): select.POLLIN, **waiting}

    def poll(self, seconds: float = 0.0) -> None:
        """Serve every client that is ready, for `seconds`. Never raises for anything that a client does."""
        end = self._clock() + seconds
        self._serve(seconds)
        while self._clock() < end:
            self._serve(max(0.0, end - self._clock()))

    def _serve(self, seconds: float) -> None:
        for descriptor, _ in self._poller.poll(seconds * 1000):
            if descriptor == self._socket.fileno():
                self._accept()
            elif descriptor in self._open:
                self._go_on(descriptor)
        now = self._clock()
        for descriptor in [number for number, one in self._open.items() if one.deadline <= now]:
            self._drop(descriptor)

    def close(self) -> None:
        """Stop listening and close every connection. May be called again."""
        for descriptor in list(self._open):
            self._drop(descriptor)
        self._socket.close()

    def _accept(self) -> None:
        try:
            client, _ = self._socket.accept()
        except OSError:  # gone again, or no descriptor is left: tried again, but not at full speed
            time.sleep(0.01)
            return
        client.settimeout(0)
        if len(self._open) >= CONNECTIONS:
            self._drop(min(self._open, key=lambda descriptor: self._open[descriptor].deadline))
        self._open[client.fileno()] = _Connection(client, self._clock() + SECONDS)
        self._poller.register(client, select.POLLIN)

    def _go_on(self, descriptor: int) -> None:
        connection = self._open[descriptor]
        try:
            (self._send if connection.answer else self._receive)(descriptor, connection)
        except BlockingIOError:  # not ready yet: poll reports when it is
            return
        except OSError:
            self._drop(descriptor)

    def _receive(self, descriptor: int, connection: _Connection) -> None:
        data = connection.client.recv(REQUEST_BYTES)
        if not data:
            self._drop(descriptor)
            return
        connection.received += data
        head, end, _ = bytes(connection.received).partition(b"\r\n\r\n")
        if not end and len(connection.received) < REQUEST_BYTES:
            return
        if not end or len(head) > REQUEST_BYTES:
            reply = refusal(431, "the request is too long")
        else:
            local = connection.client.getsockname()[0]
            reply = answer(head, self._rules, local, self._metrics, self._clock())
        connection.answer = memoryview(reply.encode())
        connection.deadline = self._clock() + SECONDS
        self._poller.modify(descriptor, select.POLLOUT)
        self._send(descriptor, connection)

    def _metrics(self, accept: str) -> Reply:
        self.scrapes += 1
        try:
            return Reply(200, *self._page(accept))
        except Exception:  # noqa: BLE001 - a user's collectors may raise anything; it is counted
            self.failures += 1
            return refusal(500, "the page could not be made")

    def _send(self, descriptor: int, connection: _Connection) -> None:
        sent = connection.client.send(connection.answer[:CHUNK])
        connection.answer = connection.answer[sent:]
        if not connection.answer:
            with contextlib.suppress(OSError):  # already gone
                connection.client.shutdown(socket.SHUT_WR)
            self._drop(descriptor)

    def _drop(self, descriptor: int) -> None:
        connection = self._open.pop(descriptor)
        self._poller.unregister(descriptor)
        connection.client.close()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the port, on one of the next, or on any."""
    problem: OSError | None = None
    for candidate in [*range(port, min(port + PORTS, 65536)), 0] if port else [0]:
        try:
            return _bound(host, candidate)
        except OSError as error:
            problem = error
            if error.errno not in BUSY:
                break
    remedy = "choose another address or port, or leave Prometheus out"
    raise StepscopeError(f"serve metrics on {host}:{port}", problem, remedy)


def _bound(host: str, port: int) -> socket.socket:
    entries = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, _, _, address = entries[0]
    listening = socket.socket(family, kind)
    try:
        # A port is free again right after its server ended; on Linux this does not allow two servers on one port.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(CONNECTIONS)
        listening.settimeout(0)
    except OSError:
        listening.close()
        raise
    return listening
