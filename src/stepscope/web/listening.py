"""The socket of the server: which address, which token, and who has the port if it is taken."""

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
    """Return sockets that listen on a port: for localhost those of both protocols.

    Raises:
        StepscopeError: the port is taken, or the address is not of this machine.
    """
    addresses = ["127.0.0.1", "::1"] if host == "localhost" else [host]
    found: list[socket.socket] = []
    try:
        for address in addresses:
            chosen = found[0].getsockname()[1] if found else port
            try:
                found.append(_bound(address, chosen))
            except OSError as error:
                if not found or error.errno == errno.EADDRINUSE:
                    raise
    except OSError as error:
        for one in found:
            one.close()
        raise _refused(host, port, error) from error
    return found


def _bound(address: str, port: int) -> socket.socket:
    entries = socket.getaddrinfo(address.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, _, _, place = entries[0]
    listening = socket.socket(family, kind)
    try:
        # So that a port whose server ended a moment ago is free again; on Linux it shares no live one.
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
        return StepscopeError(f"serve on {port}", "ports below 1024 are for root", "use --port 8080")
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"serve on {host}", "this machine has no such address", "use --host 127.0.0.1")
    return StepscopeError(f"serve on {bracketed(host)}:{port}", error.strerror or error, "use --port or --host")


def owner_of(port: int, proc: Path = Path("/proc")) -> str:
    """Return which process listens on a port, as far as this user may know."""
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
        except OSError:  # it ended, or belongs to somebody else
            continue
    return "a process of another user" if inodes else "another process"


def _open_files(folder: Path) -> set[str]:
    """Return what the open files of a process are, without those that it closed meanwhile."""
    found = set()
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            found.add(os.readlink(folder / name))
    return found


def token_for(host: str, path: Path | None = None) -> str:
    """Return the token that a server on this address requires, kept in `path` if given.

    Raises:
        StepscopeError: it can be neither read nor made.
    """
    try:
        return token_to_ask_for(host) if path is None else kept_token(path)
    except OSError as error:
        raise unkept(host, error) from error


def unkept(host: str, error: OSError) -> StepscopeError:
    """Return the error of a server whose token cannot be kept in a file."""
    cause = f"no token can be kept in {error.filename or 'a file'} ({error.strerror})"
    return StepscopeError(
        f"serve on {host}", cause, "make that possible, or set STEPSCOPE_RUNTIME_DIR to a folder of yours"
    )
