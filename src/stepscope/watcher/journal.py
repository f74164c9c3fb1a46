"""The watcher's log in the run's folder: each kind of problem once."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Journal:
    """Appends lines to watcher.log, and counts them, also if the disk is full."""

    def __init__(self, path: Path) -> None:
        """Write to `path`, which the first line creates."""
        self._path = path
        self.counts: Counter[str] = Counter()

    def note(self, message: str, kind: str | None = None) -> None:
        """Write a line, once per `kind` (by default, the message)."""
        self.counts[kind or message] += 1
        if self.counts[kind or message] > 1:
            return
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = f"{stamp} [{os.getpid()}] {message}\n".encode(errors="replace")
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError:
            self.counts["unwritten"] += 1
