"""Access to our servers: loopback addresses, and tokens in files that only their owner can read.

On a machine with several users everyone reaches every loopback port, and the kernel does not report reliably who is at
the other end. So every server of the page asks for a token. One on loopback makes a new token at each start: a
process that takes its port later, and gets the token of a page left open, learns nothing that the next server accepts.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.places import find_places

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN_BYTES = 24
"""192 bits."""
SHORTEST = 32
"""Characters that a valid token has at least."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    parts = host.split(".")
    is_four = len(parts) == 4 and parts[0] == "127" and all(part.isdecimal() and int(part) < 256 for part in parts)
    return is_four or host.strip("[]") in {"localhost", "::1"}


def bracketed(host: str) -> str:
    """Return an address as a URL has it."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def host_name(header: str) -> str | None:
    """Return the name in a `Host` header in lower case; None if the header is malformed."""
    text = header.lower()
    name, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        return text
    return name if port.isdecimal() and len(port) <= 5 else None


def new_token() -> str:
    """Return a new token."""
    return os.urandom(TOKEN_BYTES).hex()


def token_to_ask_for(host: str) -> str:
    """Return the token for a server on an address: a new one on loopback, else the one in the user's settings.

    The latter stays the same, so that an address that was given to others works after a restart. Raises OSError if it
    can be neither read nor made.
    """
    if is_loopback(host):
        return new_token()
    path = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "stepscope" / "token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return kept_token(path)


def token_path(port: int) -> Path:
    """Return the path of the token file of the server on a port; OSError if this user has no private directory."""
    return find_places().disk / f"serve-{port}.token"


def kept_token(path: Path) -> str:
    """Return the token in a file that only its owner can read; create it if there is none.

    Raises OSError if that is impossible, or if the file is a link or has another owner.
    """
    with _opened(path) as descriptor:
        token = os.read(descriptor, 256).decode("ascii", "replace").strip()
        if len(token) < SHORTEST or not token.isalnum():
            token = new_token()
            _put(descriptor, f"{token}\n")
    return token


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; OSError as for `kept_token`."""
    with _opened(path) as descriptor:
        _put(descriptor, text)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "it belongs to another user")
        os.fchmod(descriptor, 0o600)
        yield descriptor
    finally:
        os.close(descriptor)


def _put(descriptor: int, text: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)
