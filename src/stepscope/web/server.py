"""Start and stop the server: in the calling thread, or in a thread of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from stepscope.core.access import bracketed, is_loopback, token_path, write_private
from stepscope.core.config import discover, load_or_default
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.store.catalog import runs_root
from stepscope.web import router
from stepscope.web.access_policy import ADMIN, READ, AccessPolicy
from stepscope.web.guard import RequestGuard
from stepscope.web.listening import listen, token_error, token_for
from stepscope.web.protocol import uvicorn_config
from stepscope.web.site import REFRESH, Site

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from stepscope.web.static_files import StaticFiles

GRACE = 2
"""Seconds that running responses get when the server ends."""
IDLE = 75
"""Seconds that a connection may wait for its next request: longer than the pauses of a hidden page."""

DOORWAY = """<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>Stepscope</title>
<meta http-equiv="refresh" content="0;url={address}"><p>Open <a href="{address}">the page</a>.
"""


@dataclass
class ServerOptions:
    """The folder to serve, and where to serve it."""

    root: Path
    host: str = "127.0.0.1"
    port: int = 8080
    others: bool = False
    """Whether to print a read-only address on loopback as well; on other addresses it is always printed."""
    heading: str = "Stepscope"
    refresh: float = REFRESH
    token_file: Path | None = None
    """File with the token, created if it is missing; None chooses as `token_to_ask_for` does."""
    files: StaticFiles | None = None
    first: tuple[str, ...] = ()
    """Metrics that are shown first."""


def configured(
    root: str | None = None, host: str | None = None, port: int | None = None, *, others: bool = False
) -> ServerOptions:
    """Return the options, from the configuration where an argument is None. Raises UsageError for an invalid port."""
    config = load_or_default(discover(Path.cwd(), os.environ), environ=os.environ)
    chosen = int(config.get("web.port")) if port is None else port
    if not 0 <= chosen <= 65535:
        raise UsageError(f"serve on {chosen}", "ports are 0 to 65535", "use --port 8080")
    address = str(config.get("web.host")) if host is None else host
    refresh, first = float(config.get("web.refresh_interval")), tuple(config.get("web.metrics"))
    return ServerOptions(runs_root(root), address, chosen, others=others, refresh=refresh, first=first)


def return_memory_early() -> bool:
    """Make glibc return freed memory to the system at once; return whether that worked.

    glibc keeps freed memory in one heap per thread: the server of a live run took 300 MiB instead of 140.
    """
    threshold, arenas = -3, -8  # M_MMAP_THRESHOLD, M_ARENA_MAX
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(threshold, 1 << 20)) and bool(mallopt(arenas, 2))


class Server:
    """A server that listens; its port is bound as long as this object exists."""

    def __init__(self, options: ServerOptions) -> None:
        """Bind the port. Raises StepscopeError if it is unavailable, or if the token cannot be stored."""
        self.options = options
        token = token_for(options.host, options.token_file)
        self._sockets: list[socket.socket] = listen(options.host, options.port)
        self.port: int = self._sockets[0].getsockname()[1]
        self.policy = AccessPolicy(options.host, token, self.port)
        self.site = Site(options.root, options.heading, options.refresh, options.first)
        self._private: dict[Path, str] = {}
        app = RequestGuard(router.build(self.site, options.files), self.policy, self.site.traffic)
        self._uvicorn = _EmbeddedServer(uvicorn_config(app, IDLE, GRACE))
        self._thread: threading.Thread | None = None
        self._write_private(".token", f"{token}\n")

    @property
    def address(self) -> str:
        """Address of the page, with the token of the owner."""
        return self.address_for(ADMIN)

    def address_for(self, scope: str | None) -> str:
        """Return the address of the page with the token of a scope; None leaves the token out."""
        host = self.options.host
        shown = self.policy.machine if host in {"", "0.0.0.0", "::"} else host  # noqa: S104 - compared
        token = "" if scope is None else f"?token={self.policy.token_for(scope)}"
        return f"http://{bracketed(shown)}:{self.port}/{token}"

    def doorway(self) -> Path:
        """Write a private file that redirects to the address, and return its path.

        A browser is started with this file because other users can read its command line, and so the token in it.
        Raises StepscopeError if the file cannot be written.
        """
        return self._write_private(".html", DOORWAY.format(address=self.address))

    def notices(self) -> list[str]:
        """Return the lines to print at the start."""
        lines = [f"Stepscope serves {self.options.root} at {self.address}"]
        is_local = is_loopback(self.options.host)
        if self.options.others or not is_local:
            lines.append(f"read-only address for others: {self.address_for(READ)}")
        if not is_local:
            text = "there is no TLS here, so anyone on the network can read the data and the token"
            tunnel = f"ssh -L {self.port}:127.0.0.1:{self.port} HOST"
            lines.append(f"warning: {text}; prefer `{tunnel}` and --host 127.0.0.1")
        return lines

    def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve in this thread until SIGINT, SIGTERM or `stop`."""
        self.site.start()
        self._uvicorn.ready = ready
        try:
            self._uvicorn.run(sockets=self._sockets)
        finally:
            self.site.stop()
            self._remove_files()

    def start(self) -> None:
        """Serve in a daemon thread. Raises StepscopeError if the server did not start."""
        self._uvicorn.handles_signals = False
        self._thread = threading.Thread(target=self.run, name="stepscope-serve", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._uvicorn.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        if not self._uvicorn.started:
            raise StepscopeError("start the server", "its thread ended", "run `stepscope serve` to see why")

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last request."""
        return time.monotonic() - self.site.traffic.last

    def end(self) -> None:
        """Make `run` return soon."""
        self._uvicorn.should_exit = True

    def stop(self) -> None:
        """End the server and its thread."""
        self.end()
        if self._thread is not None:
            self._thread.join(GRACE + 3)
        self._close_sockets()
        self._remove_files()

    def _close_sockets(self) -> None:
        for bound in self._sockets:
            bound.close()

    def _write_private(self, ending: str, text: str) -> Path:
        """Write a file for this port that is removed when the server ends."""
        try:
            path = token_path(self.port).with_suffix(ending)
            write_private(path, text)
        except OSError as error:
            self._close_sockets()
            raise token_error(self.options.host, error) from error
        self._private[path] = text
        return path

    def _remove_files(self) -> None:
        """Remove the files of this server, unless another server on the same port has replaced them."""
        for path, text in self._private.items():
            with contextlib.suppress(OSError):  # gone already
                if path.read_text(encoding="utf-8") == text:
                    path.unlink()


class _EmbeddedServer(uvicorn.Server):
    """Uvicorn that ignores signals in a thread, and calls back when it listens."""

    handles_signals = True
    ready: Callable[[], None] | None = None

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Handle SIGINT and SIGTERM in the main thread only."""
        return super().capture_signals() if self.handles_signals else contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call back."""
        await super().startup(sockets)
        if self.ready is not None:
            self.ready()
