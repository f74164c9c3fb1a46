"""What others ask of a live run: a file beside its ring, noticed about once a second by one look at the file system.

It lies in the private runtime directory and not in the run's folder: that may be on a network file system, where a look
can block the training, and only this user can write here.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.session.run import Run

MAX_BYTES = 4096
"""Bytes of the largest request."""
TAKEN, STARTED = "profile_requested", "profile_started"
"""Kinds of the events that say that a request was taken, and that its profile has begun."""


class Request(NamedTuple):
    """A profile that is asked for."""

    id: str
    options: dict[str, Any]
    """Keyword arguments of `Run.profile`."""

    def encode(self) -> bytes:
        """Return the content of the file."""
        return json.dumps({"profile": self.options, "id": self.id}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """Read the content of the file.

        Raises:
            ValueError: it is no request.
        """
        try:
            facts = json.loads(data)
            return cls(str(facts["id"])[:64], dict(facts["profile"].items()))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"no request: {error}") from None


def place(path: Path, request: Request) -> None:
    """Put a request where the process looks for it, whole or not at all; an older one that nobody took is replaced.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, request.encode())
    finally:
        os.close(descriptor)
    os.replace(part, path)


class Requests:
    """The requests to one process."""

    def __init__(self, path: Path) -> None:
        """Look for them at `path`."""
        self._path = os.fspath(path)

    def due(self) -> Request | None:
        """Return the request that has come since the last call, if there is one; never raises."""
        try:
            os.stat(self._path)
        except OSError:  # almost always: there is none
            return None
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                data = os.read(descriptor, MAX_BYTES)
            finally:
                os.close(descriptor)
            os.unlink(self._path)  # before it is read: one that cannot be read must not come again
            return Request.decode(data)
        except (OSError, ValueError):  # whoever asked gets no answer, and says so
            return None

    def look(self, run: Run) -> None:
        """Answer a request that has come: say that it was taken, and begin the profile that it asks for."""
        request = self.due()
        if request is None or not run.recording:
            return
        run.own_event(TAKEN, request=request.id)
        run.profile(**{**request.options, "labels": {"request": request.id}, "show": None})
