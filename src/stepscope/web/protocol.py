"""HTTP with limits that uvicorn lacks: time to send a request, time to read a response, number of connections.

A client that stalls cannot hold a connection for long.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

HEAD_SECONDS = 10.0
"""Seconds from the connection, or from the first byte of a request, until its head must be complete."""
CONNECTIONS = 1024
"""Connections at a time; further connections are closed at once."""
HEAD_BYTES = 32_768
"""Bytes of a request's head."""
READ_SECONDS = 30.0
"""Seconds that a response may wait for its reader in total, and for the last bytes of a closed connection."""
EARNED_SECONDS = 3.0
"""Seconds added for each 48 KiB that the reader takes, up to READ_SECONDS: 16 KiB/s is always fast enough."""


def uvicorn_config(app: Any, keep_alive: int = 5, grace: int = 1) -> uvicorn.Config:
    """Return the configuration of a server with these limits, and without logs and WebSockets.

    A connection may wait `keep_alive` seconds for its next request; running responses get `grace` seconds at the end.
    """
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level=logging.CRITICAL,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=grace,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )


class BoundedProtocol(H11Protocol):
    """One connection."""

    _head_timer: asyncio.TimerHandle | None = None
    _abort_timer: asyncio.TimerHandle | None = None
    _left = READ_SECONDS
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
            return
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._abort_late_head)

    def data_received(self, data: bytes) -> None:
        """Receive bytes; stop the deadline once the head of a request is complete."""
        before: Any = self.cycle
        if self._head_timer is None and (before is None or before.response_complete):
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._abort_late_head)
        super().data_received(data)
        if self.cycle is not before:
            self._cancel_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all deadlines."""
        self._cancel_head_timer()
        self._abort_after(None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the reader, as long as it has time left."""
        super().pause_writing()
        self._since = self.loop.time()
        self._abort_after(max(0.0, self._left))

    def resume_writing(self) -> None:
        """Continue; reading earns the reader more time."""
        super().resume_writing()
        self._left = min(READ_SECONDS, self._left - (self.loop.time() - self._since) + EARNED_SECONDS)
        self._abort_after(None)

    def on_response_complete(self) -> None:
        """End a response; if this closes the connection, limit the time to read the last bytes."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_after(READ_SECONDS)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, whether its last response was read or not."""
        super().timeout_keep_alive_handler()
        if self.transport.is_closing():
            self._abort_after(READ_SECONDS)

    def _abort_after(self, seconds: float | None) -> None:
        """Abort the connection after some seconds; None cancels that."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
            self._abort_timer = None
        if seconds is not None:
            self._abort_timer = self.loop.call_later(seconds, self.transport.abort)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort_late_head(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.abort()
