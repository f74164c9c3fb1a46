"""The socket of the server: which address, whether it needs a token, and who has the port if it is taken."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

from stepscope.core.errors import StepscopeError, UsageError
from stepscope.web.rules import bracketed, is_loopback

BACKLOG = 512
TOKEN_BYTES = 24
"""192 bits."""
TOKEN_FILE = "stepscope/token"  # noqa: S105 - the name of a file
SHORTEST = 32
"""Characters of a token that is taken as one."""


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


def token_for(host: str, *, wanted: bool, path: Path | None = None) -> str | None:
    """Return the token that a server must ask for: on any address but loopback, or where it is wanted (rule S2).

    It lies in a file that only its owner can read, and is made where there is none.

    Raises:
        StepscopeError: it can be neither read nor made.
    """
    if is_loopback(host) and not wanted:
        return None
    file = path or Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / TOKEN_FILE
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _token(file)
    except OSError as error:
        cause = f"no token can be kept in {file} ({error.strerror})"
        raise StepscopeError(f"serve on {host}", cause, "make that possible, or serve on 127.0.0.1") from error


def _token(path: Path) -> str:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "it belongs to somebody else")
        os.fchmod(descriptor, 0o600)
        token = os.read(descriptor, 256).decode("ascii", "replace").strip()
        if len(token) < SHORTEST or not token.isalnum():
            token = os.urandom(TOKEN_BYTES).hex()
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{token}\n".encode(), 0)
    finally:
        os.close(descriptor)
    return token
