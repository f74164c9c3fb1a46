"""HTTP with bounds that uvicorn leaves out: requests come, and answers are read, in time; connections are counted.

A client that starts a request and does not finish it holds no resources for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

HEAD_SECONDS = 10.0
"""Seconds from the connection, or from the first byte of a request, until its head must be there."""
CONNECTIONS = 1024
"""Connections at a time; those beyond are closed at once."""
HEAD_BYTES = 32_768
"""Bytes of a request's head."""
READ_SECONDS = 30.0
"""Seconds that an answer may wait in all for its reader, and for the reader to take the end of one that is closed."""
EARNED_SECONDS = 3.0
"""Seconds more for each 48 KiB that the reader has taken, up to the above: 16 KiB/s are always fast enough."""


class BoundedProtocol(H11Protocol):
    """One connection."""

    _deadline: asyncio.TimerHandle | None = None
    _patience: asyncio.TimerHandle | None = None
    _left = READ_SECONDS
    _since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
            return
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes; once the head of a request is there, nothing is late any more."""
        before: Any = self.cycle
        if self._deadline is None and (before is None or before.response_complete):
            self._await_head()
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        self._lose_patience(None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the reader, whose side is full, as long as it has left."""
        super().pause_writing()
        self._since = self.loop.time()
        self._lose_patience(max(0.0, self._left))

    def resume_writing(self) -> None:
        """Go on; what the reader has taken earns it some time."""
        super().resume_writing()
        self._left = min(READ_SECONDS, self._left - (self.loop.time() - self._since) + EARNED_SECONDS)
        self._lose_patience(None)

    def on_response_complete(self) -> None:
        """End an answer; a connection that is closed with it must not wait for ever for its last bytes to be read."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._lose_patience(READ_SECONDS)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without a further request, whether its last answer was read or not."""
        super().timeout_keep_alive_handler()
        if self.transport.is_closing():
            self._lose_patience(READ_SECONDS)

    def _lose_patience(self, seconds: float | None) -> None:
        """Cut the connection after so many seconds; never, for None."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if seconds is not None:
            self._patience = self.loop.call_later(seconds, self.transport.abort)

    def _await_head(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.abort()
