"""The server that a training starts: it ends when no run of its folder is running and no request came for a while."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.access import token_path

if TYPE_CHECKING:
    from stepscope.web.server import Server

IDLE = 900.0
"""Seconds without a request and without a running run after which the server ends."""
POLL = 5.0
"""Seconds between two checks whether the server is still needed."""


def main(arguments: list[str]) -> int:
    """Serve a folder: its root, host, port, the lock file, seconds between updates, metrics shown first."""
    from stepscope.web.server import Server, ServerOptions

    root, host, port, lock, refresh, metrics = (*arguments, "0.5", "")[:6]
    descriptor = locked(Path(lock))
    if descriptor is None:
        return 0  # another process serves this folder
    first = tuple(name for name in metrics.split(",") if name)
    token = token_path(int(port))  # written by the process that started this one, which prints it
    server = Server(ServerOptions(Path(root), host, int(port), refresh=float(refresh), token_file=token, first=first))
    os.pwrite(descriptor, f"{server.address_for(None)}\n".encode(), 0)
    threading.Thread(target=end_when_idle, args=(server,), daemon=True).start()
    server.run()
    return 0


def locked(path: Path) -> int | None:
    """Return the open file with its lock; None if another process has the lock."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    return descriptor


def end_when_idle(server: Server, idle: float = IDLE, poll: float = POLL) -> None:
    """Stop the server once it is not needed; checks every `poll` seconds."""
    while True:
        time.sleep(poll)
        if server.idle_seconds > idle and not server.site.runs.any_running():
            server.end()
            return
