"""Start and stop the server: in this thread until it is told to end, or in a thread beside a training."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn

from stepscope.core.errors import StepscopeError
from stepscope.web.answers import REFRESH, Site
from stepscope.web.app import App
from stepscope.web.listening import listen, token_for
from stepscope.web.peers import Peers
from stepscope.web.protocol import HEAD_BYTES, protocol_for
from stepscope.web.rules import ADMIN, READ, Rules, bracketed, is_loopback

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.web.static_files import StaticFiles

GRACE = 2
"""Seconds that answers under way have when the server ends."""
IDLE = 75
"""Seconds that a connection may wait for its next request: longer than a page that is hidden pauses."""


@dataclass
class Options:
    """What is served, and where."""

    root: Path
    host: str = "127.0.0.1"
    port: int = 8080
    token: bool = False
    """Whether a token is asked for on loopback too; elsewhere it always is."""
    heading: str = "Stepscope"
    refresh: float = REFRESH
    names: set[str] = field(default_factory=set)
    """Further names that the server answers to."""
    token_file: Path | None = None
    files: StaticFiles | None = None
    first: tuple[str, ...] = ()
    """Metrics that are shown first."""


class Server:
    """A server that listens; its port is taken when this object exists."""

    def __init__(self, options: Options) -> None:
        """Take the port.

        Raises:
            StepscopeError: it cannot be had, or the address needs a token that cannot be kept.
        """
        self.options = options
        token = token_for(options.host, wanted=options.token, path=options.token_file)
        self._sockets: list[socket.socket] = listen(options.host, options.port)
        self.port: int = self._sockets[0].getsockname()[1]
        self.rules = Rules(options.host, token, self.port, options.names)
        self.site = Site(options.root, options.heading, options.refresh, options.first)
        peers = Peers(self.port) if is_loopback(options.host) and token is None else None
        app = self._guard = App(self.site, options.files).build(self.rules, peers)
        config = uvicorn.Config(
            app,
            http=protocol_for(peers),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=GRACE,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        self._uvicorn = _Quiet(config)
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where a browser on this machine finds the page, with the owner's token if one is needed."""
        return self.address_for(ADMIN)

    def address_for(self, scope: str | None) -> str:
        """Return the address for whoever may do what the scope says; None is that without any token."""
        host = self.options.host
        shown = {"": self.rules.machine, "0.0.0.0": self.rules.machine, "::": self.rules.machine}.get(host, host)  # noqa: S104 - compared
        token = "" if scope is None else self.rules.token_for(scope)
        return f"http://{bracketed(shown)}:{self.port}/{f'?token={token}' if token else ''}"

    def notices(self) -> list[str]:
        """Return what whoever starts the server should know."""
        found = [f"Stepscope serves {self.options.root} at {self.address}"]
        if self.rules.token is not None:
            found.append(f"to let others look, without changing anything: {self.address_for(READ)}")
        if not is_loopback(self.options.host):
            text = "everybody on the way can read what is sent, the token too: there is no TLS here"
            found.append(
                f"warning: {text}; prefer `ssh -L {self.port}:127.0.0.1:{self.port} HOST` and --host 127.0.0.1"
            )
        return found

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve in this thread until SIGINT, SIGTERM or `stop`."""
        self.site.start()
        self._uvicorn.ready = ready
        try:
            self._uvicorn.run(sockets=self._sockets)
        finally:
            self.site.stop()

    def start(self) -> None:
        """Serve in a thread that does not keep the program from ending.

        Raises:
            StepscopeError: it did not start.
        """
        self._uvicorn.handles_signals = False
        self._thread = threading.Thread(target=self.run, name="stepscope-serve", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._uvicorn.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        if not self._uvicorn.started:
            raise StepscopeError("start the server", "its thread ended", "run `stepscope serve` to see why")

    @property
    def quiet_seconds(self) -> float:
        """Seconds since anybody asked anything."""
        return time.monotonic() - self._guard.last

    def end(self) -> None:
        """Let `run` return soon."""
        self._uvicorn.should_exit = True

    def stop(self) -> None:
        """End the server; its thread is gone when this returns."""
        self.end()
        if self._thread is not None:
            self._thread.join(GRACE + 3)
        for one in self._sockets:
            one.close()


class _Quiet(uvicorn.Server):
    """Uvicorn, which leaves signals alone in a thread and says when it listens."""

    handles_signals = True
    ready: Callable[[], None] | None = None

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Take SIGINT and SIGTERM in the main thread only."""
        return super().capture_signals() if self.handles_signals else contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        if self.ready is not None:
            self.ready()
