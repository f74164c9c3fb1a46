"""Requests to a live run: a file beside its ring, checked about once a second with one system call.

The file is in the private runtime directory and not in the run's folder, which may be on a network file system, where a
check can block the training; and only this user can write there.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.store.layout import replace

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.session.run import Run

MAX_BYTES = 4096
"""Maximum bytes of a request."""
TAKEN, STARTED = "profile_requested", "profile_started"
"""Kinds of the events that a request was accepted, and that its profile has started."""


class ProfileRequest(NamedTuple):
    """A requested profile."""

    id: str
    options: dict[str, Any]
    """Keyword arguments of `Run.profile`."""

    def encode(self) -> bytes:
        """Return the content of the file."""
        return json.dumps({"profile": self.options, "id": self.id}).encode()

    @classmethod
    def decode(cls, data: bytes) -> ProfileRequest:
        """Read the content of the file; raise ValueError if it is not a request."""
        try:
            facts = json.loads(data)
            return cls(str(facts["id"])[:64], dict(facts["profile"].items()))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"no request: {error}") from None


def place(path: Path, request: ProfileRequest) -> None:
    """Put a request atomically where the process looks for it, in place of an unanswered one; raise OSError if not."""
    replace(path, request.encode())


def take(path: str) -> ProfileRequest | None:
    """Return the request to this process that has come since the last call, if there is one; never raises."""
    try:
        os.stat(path)
    except OSError:  # the usual case: there is none
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.read(descriptor, MAX_BYTES)
        finally:
            os.close(descriptor)
        os.unlink(path)  # before it is read: an unreadable request must not come again
        return ProfileRequest.decode(data)
    except (OSError, ValueError):  # the sender gets no answer, and reports that
        return None


def answer(path: str, run: Run) -> None:
    """Answer a request that has come: acknowledge it, and start the requested profile."""
    request = take(path)
    if request is not None and run.recording:
        run.own_event(TAKEN, request=request.id)
        run.profile(**{**request.options, "labels": {"request": request.id}, "show": None})
