"""What a rank tells the keeper of its console."""

from __future__ import annotations

import json
from typing import NamedTuple


class ConsoleBrief(NamedTuple):
    """Whose console to keep.

    The keeper finds its open files after `spawn.KEPT_FROM`: requests of the rank, answers to it, and for each stream
    where to read what the rank prints and where to write it on.
    """

    rank: int
    attempt: int
    limit: int
    """Maximum bytes in the run."""
    streams: tuple[str, ...]
    """`out` and `err`, one of them, or the empty text for both in one."""

    def encode(self) -> str:
        """Return it as one argument of a command line."""
        return json.dumps(self._asdict())

    @classmethod
    def decode(cls, text: str) -> ConsoleBrief:
        """Read what `encode` returned."""
        facts = json.loads(text)
        return cls(**{**facts, "streams": tuple(facts["streams"])})


DRAIN, DRAINED = b"d", b"k"
"""The request to hand on what was printed until now, and its answer."""
PID_BYTES = 4
"""Bytes of the keeper's process id, which it sends before any answer: the lowest first."""
