"""Seal tails in a short-lived child, so that the watcher never loads the database engine."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections import deque
from typing import TYPE_CHECKING

from stepscope.core.spawn import SpawnError, arguments, interpreter

if TYPE_CHECKING:
    from stepscope.store.layout import RunFolder, Writer
    from stepscope.watcher.journal import Journal

RETRIES = 3
RETRY_AFTER, RETRY_AT_END = 30.0, 5.0
"""Seconds: while trainers live, and once only the sealing keeps the watcher running."""


class Sealing:
    """A queue of tails to seal, one child at a time."""

    def __init__(self, folder: RunFolder, journal: Journal) -> None:
        """Start with nothing to do."""
        self._folder, self._journal = folder, journal
        self._queue: deque[tuple[Writer, int]] = deque()
        self._child: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._failed_at = float("-inf")

    def add(self, writer: Writer, number: int) -> None:
        """Ask for the tails of `writer` up to `number` to be sealed."""
        self._queue.append((writer, number))

    def poll(self, now: float, *, alone: bool = False) -> None:
        """Handle the end of a child and start the next; `now` is monotonic, in seconds.

        `alone` means that no trainer is left: a failure is tried again sooner.
        """
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return
            self._ended(self._child, code, now)
        if self._queue and now - self._failed_at >= (RETRY_AT_END if alone else RETRY_AFTER):
            self._start(now)

    def idle(self) -> bool:
        """Return whether nothing is left to do, or sealing has failed too often."""
        return self._child is None and (not self._queue or self._failures >= RETRIES)

    def _start(self, now: float) -> None:
        writer, number = self._queue[0]
        values = (str(self._folder.path), writer.node, str(writer.attempt), str(number))
        try:
            self._child = subprocess.Popen(
                [interpreter(), *arguments("stepscope.store.seal", *values)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
            )
        except (OSError, SpawnError) as error:
            self._fail(f"cannot start sealing: {error}; the rows stay readable in the tail", now)

    def _ended(self, child: subprocess.Popen[bytes], code: int, now: float) -> None:
        self._child, stderr = None, ""
        if child.stderr is not None:
            with child.stderr as pipe:
                stderr = pipe.read()[-2000:].decode(errors="replace").strip()
        if code == 0:
            self._queue.popleft()
            self._failures = 0
            if stderr:
                self._journal.note(stderr)
        else:
            self._fail(f"cannot seal: {stderr or f'exit code {code}'}; the rows stay readable in the tail", now)

    def _fail(self, message: str, now: float) -> None:
        self._failures += 1
        self._failed_at = now
        self._journal.note(message)


def lower_priority(increment: int) -> None:
    """Raise our nice value, in favour of the training, if the system can do that."""
    with contextlib.suppress(AttributeError, OSError):
        os.nice(increment)
