"""Serve the page beside a training: one process for all runs of a folder, which ends when it is no longer needed."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from typing import TYPE_CHECKING

from stepscope.core.access import bracketed, kept_token, token_path, token_to_ask_for, write_private
from stepscope.core.errors import StepscopeError
from stepscope.core.places import find_places
from stepscope.core.spawn import SpawnError, start_detached
from stepscope.recorder.complaints import tell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODULE = "stepscope.web.training_server"
PORTS = 10
"""Number of ports to try from the requested one; then any."""


def lock_path(root: Path) -> Path:
    """Return the file that the server of a folder of runs locks, and writes its address to."""
    return find_places().of_run(str(root), find_places().disk).with_suffix(".page")


def serve_beside(
    root: Path,
    host: str,
    port: int,
    *more: str,
    start: Callable[..., None] = start_detached,
    say: Callable[[str], None] = tell,
) -> None:
    """Start a server for the runs below `root`, unless there is one; report the page's address. Never raises.

    `port` is the first to try; `more` are arguments of the server: seconds between updates, metrics shown first.
    """
    try:
        lock = lock_path(root)
        there = address_in(lock)
        if there is None:
            chosen = free_port(host, port)
            write_private(token_path(chosen), f"{token_to_ask_for(host)}\n")
            start(MODULE, str(root), host, str(chosen), str(lock), *more)
            there = f"http://{bracketed(host)}:{chosen}/"
        notice = notice_of(there, private=is_private())
    except (OSError, SpawnError, StepscopeError) as error:
        say(f"cannot serve the page: {error}; `stepscope serve {root}` does it in a terminal of its own")
        return
    say(notice)


def notice_of(address: str, *, private: bool) -> str:
    """Return the sentence with the page's address; its token only where other people cannot read it.

    Raises OSError if the token of that server cannot be found.
    """
    file = token_path(int(address.rstrip("/").rpartition(":")[2]))
    if private:
        return f"the page is at {address}?token={kept_token(file)}"
    return f"the page is at {address} and asks for the token in {file}"


def is_private() -> bool:
    """Return whether only this user sees the output: a terminal or a notebook, not a log that others may read."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def address_in(lock: Path) -> str | None:
    """Return the address of a server that holds this lock; None if there is none."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EAGAIN}:
            raise
        return os.read(descriptor, 300).decode("utf-8", "replace").strip() or None
    else:
        return None
    finally:
        os.close(descriptor)


def free_port(host: str, port: int) -> int:
    """Return the first free port from `port` on, or any.

    Raises OSError if this machine does not have the address, StepscopeError if no port is free.
    """
    for candidate in [*range(port, min(port + PORTS, 65536)), 0] if port else [0]:
        family, kind, _, _, place = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise
            return int(probe.getsockname()[1])
    raise StepscopeError("serve the page", "no port is free", "end a program that listens")
