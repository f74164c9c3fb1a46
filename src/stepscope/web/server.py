"""Start and stop the server: in this thread until it is told to end, or in a thread beside a training."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn

from stepscope.core.access import bracketed, is_loopback, token_path, write_private
from stepscope.core.errors import StepscopeError
from stepscope.web.answers import REFRESH, Site
from stepscope.web.app import App
from stepscope.web.listening import listen, token_for, unkept
from stepscope.web.protocol import HEAD_BYTES, BoundedProtocol
from stepscope.web.rules import ADMIN, READ, Rules

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from stepscope.web.static_files import StaticFiles

GRACE = 2
"""Seconds that answers under way have when the server ends."""
IDLE = 75
"""Seconds that a connection may wait for its next request: longer than a page that is hidden pauses."""

DOORWAY = """<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>Stepscope</title>
<meta http-equiv="refresh" content="0;url={address}"><p>This leads to <a href="{address}">the page</a>.
"""


@dataclass
class Options:
    """What is served, and where."""

    root: Path
    host: str = "127.0.0.1"
    port: int = 8080
    others: bool = False
    """Whether the address for people who may only look is told on loopback too; elsewhere it always is."""
    heading: str = "Stepscope"
    refresh: float = REFRESH
    names: set[str] = field(default_factory=set)
    """Further names that the server answers to."""
    token_file: Path | None = None
    """Holds the token, and is made where there is none; None: as `token_to_ask_for` says."""
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
        token = token_for(options.host, options.token_file)
        self._sockets: list[socket.socket] = listen(options.host, options.port)
        self.port: int = self._sockets[0].getsockname()[1]
        self.rules = Rules(options.host, token, self.port, options.names)
        self.site = Site(options.root, options.heading, options.refresh, options.first)
        self._private: dict[Path, str] = {}
        app = self._guard = App(self.site, options.files).build(self.rules)
        config = uvicorn.Config(
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
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=GRACE,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        self._uvicorn = _Quiet(config)
        self._thread: threading.Thread | None = None
        self._keep(token_path, f"{token}\n")

    @property
    def address(self) -> str:
        """Where a browser on this machine finds the page, with the owner's token."""
        return self.address_for(ADMIN)

    def address_for(self, scope: str | None) -> str:
        """Return the address for whoever may do what the scope says; None is that without any token."""
        host = self.options.host
        shown = {"": self.rules.machine, "0.0.0.0": self.rules.machine, "::": self.rules.machine}.get(host, host)  # noqa: S104 - compared
        token = "" if scope is None else f"?token={self.rules.token_for(scope)}"
        return f"http://{bracketed(shown)}:{self.port}/{token}"

    def doorway(self) -> Path:
        """Write a page that leads to the address, for its owner alone, and return where it lies.

        A browser is started with this file: its command line, where the address would show, is everybody's to read.

        Raises:
            StepscopeError: it cannot be written.
        """
        return self._keep(lambda port: token_path(port).with_suffix(".html"), DOORWAY.format(address=self.address))

    def notices(self) -> list[str]:
        """Return what whoever starts the server should know."""
        found = [f"Stepscope serves {self.options.root} at {self.address}"]
        is_local = is_loopback(self.options.host)
        if self.options.others or not is_local:
            found.append(f"to let others look, without changing anything: {self.address_for(READ)}")
        if not is_local:
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
            self._withdraw()

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
        self._withdraw()

    def _keep(self, place: Callable[[int], Path], text: str) -> Path:
        """Write a file that goes with this server."""
        try:
            path = place(self.port)
            write_private(path, text)
        except OSError as error:
            for one in self._sockets:
                one.close()
            raise unkept(self.options.host, error) from error
        self._private[path] = text
        return path

    def _withdraw(self) -> None:
        """Remove the files of this server, unless another one has the port, and has written its own."""
        for path, text in self._private.items():
            with contextlib.suppress(OSError):  # gone already
                if path.read_text(encoding="utf-8") == text:
                    path.unlink()


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
