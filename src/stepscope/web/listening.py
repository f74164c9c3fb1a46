"""The listening sockets of the server, its token, and the process that holds a port in use."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from stepscope.core.access import bracketed, kept_token, token_to_ask_for
from stepscope.core.errors import StepscopeError, UsageError

BACKLOG = 512


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on a port: for localhost both IPv4 and IPv6.

    Raises StepscopeError if the port is in use, or this machine does not have the address.
    """
    sockets: list[socket.socket] = []
    for address in ["127.0.0.1", "::1"] if host == "localhost" else [host]:
        try:
            sockets.append(_bound(address, sockets[0].getsockname()[1] if sockets else port))
        except OSError as error:
            if sockets and error.errno != errno.EADDRINUSE:
                continue  # a machine without IPv6
            for bound in sockets:
                bound.close()
            raise _refused(host, port, error) from error
    return sockets


def _bound(address: str, port: int) -> socket.socket:
    entries = socket.getaddrinfo(address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, _, _, place = entries[0]
    listening = socket.socket(family, kind)
    try:
        # A port is free again right after its server ended; on Linux this does not allow two servers on one port.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(place)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _refused(host: str, port: int, error: OSError) -> StepscopeError:
    if error.errno == errno.EADDRINUSE:
        return StepscopeError(f"serve on {port}", f"in use by {owner_of(port)}", f"use --port, for example {port + 1}")
    if error.errno == errno.EACCES:
        return StepscopeError(f"serve on {port}", "ports below 1024 need root", "use --port 8080")
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"serve on {host}", "this machine has no such address", "use --host 127.0.0.1")
    return StepscopeError(f"serve on {bracketed(host)}:{port}", error.strerror or error, "use --port or --host")


def owner_of(port: int, proc: Path = Path("/proc")) -> str:
    """Return a description of the process that listens on a port, as far as this user may see it."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == "0A" and fields[1].endswith(f":{port:04X}"):
                    inodes.add(f"socket:[{fields[9]}]")
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            if _open_files(process / "fd") & inodes:
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").split()
                return f"process {process.name} ({' '.join(words[:6])[:80]})"
        except OSError:  # it ended, or belongs to another user
            continue
    return "a process of another user" if inodes else "another process"


def _open_files(folder: Path) -> set[str]:
    """Return the targets of the open files of a process; files that it closes meanwhile are skipped."""
    targets = set()
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            targets.add(os.readlink(folder / name))
    return targets


def token_for(host: str, path: Path | None = None) -> str:
    """Return the token that a server on this address requires; it is stored in `path` if that is given.

    Raises StepscopeError if the token can be neither read nor created.
    """
    try:
        return token_to_ask_for(host) if path is None else kept_token(path)
    except OSError as error:
        raise token_error(host, error) from error


def token_error(host: str, error: OSError) -> StepscopeError:
    """Return the error of a server that cannot store its token."""
    cause = f"its token cannot be stored in {error.filename or 'a file'} ({error.strerror})"
    return StepscopeError(f"serve on {host}", cause, "fix that, or set STEPSCOPE_RUNTIME_DIR to a folder of yours")
