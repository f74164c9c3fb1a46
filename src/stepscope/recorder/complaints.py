"""Report bad input once per kind, count every occurrence, and never raise into the training."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TextIO


class Complaints:
    """Count refused input by kind; the first of each kind is printed on stderr with its remedy."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to `stream`, or to the current sys.stderr."""
        self._stream = stream
        self.counts: Counter[str] = Counter()

    def say(self, kind: str, message: str) -> None:
        """Count one complaint of `kind`, and print `message` if it is the first."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            tell(message, self._stream)


def tell(message: str, stream: TextIO | None = None) -> None:
    """Print one line for the user; a closed or broken terminal is ignored."""
    stream = stream or sys.stderr
    try:
        stream.write(f"stepscope: {message}\n")
        stream.flush()
    except (OSError, ValueError, AttributeError, RuntimeError):  # RuntimeError: we are inside a write to it
        return
