"""A deadline on every call of a client, kept by one thread for many calls.

A thread for each call, as `threading.Timer` has it, costs more than most of the calls. This one sleeps until the
deadline that it knows, and ends if no call is under way then.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import http.client


class Deadline:
    """Cuts the connection of a call that takes too long. For one call at a time."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self._changed = threading.Condition()
        self._connection: http.client.HTTPConnection | None = None
        self._until = 0.0
        """When (monotonic seconds) the call has to be over."""
        self._wakes = 0.0
        """When (monotonic seconds) the thread looks again."""
        self._is_running = False
        self.is_over = False
        """Whether the current call, or the last one, was cut."""

    def begin(self, connection: http.client.HTTPConnection, seconds: float) -> None:
        """Cut this connection after so many seconds, unless `end` comes first."""
        with self._changed:
            self.is_over = False
            self._connection, self._until = connection, time.monotonic() + seconds
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._watch, name="deadline", daemon=True).start()
            elif self._until < self._wakes:
                self._changed.notify()

    def end(self) -> None:
        """Let the connection live: the call is over."""
        with self._changed:
            self._connection = None

    def _watch(self) -> None:
        with self._changed:
            while self._connection is not None:
                now = time.monotonic()
                if now >= self._until:
                    self._cut()
                    break
                self._wakes = self._until
                self._changed.wait(self._until - now)
            self._is_running = False

    def _cut(self) -> None:
        self.is_over = True
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):  # it is closed already
                sock.shutdown(socket.SHUT_RDWR)
