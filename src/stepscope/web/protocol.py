"""HTTP with bounds that uvicorn leaves out: a request must come in time, and connections are counted (rule S14)."""

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


class BoundedProtocol(H11Protocol):
    """One connection."""

    _deadline: asyncio.TimerHandle | None = None

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
        super().connection_lost(exc)

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
