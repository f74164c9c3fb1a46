"""The watcher's own log, in the run: what went wrong, once per kind."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Journal:
    """Append lines to watcher.log; where that fails (a full disk), the count is all that is left."""

    def __init__(self, path: Path) -> None:
        """Write to `path`, made at the first line."""
        self._path = path
        self.counts: Counter[str] = Counter()

    def note(self, message: str, kind: str | None = None) -> None:
        """Write a line, once per `kind` (by default the message itself is its kind)."""
        self.counts[kind or message] += 1
        if self.counts[kind or message] > 1:
            return
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = f"{stamp} [{os.getpid()}] {message}\n".encode(errors="replace")
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:
            self.counts["unwritten"] += 1
            return
        try:
            os.write(descriptor, line)
        except OSError:
            self.counts["unwritten"] += 1
        finally:
            os.close(descriptor)
