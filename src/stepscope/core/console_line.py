"""One line that a rank printed."""

from __future__ import annotations

from typing import NamedTuple


class ConsoleLine(NamedTuple):
    """One line of a rank's console."""

    time: float
    """When its last character was printed, in seconds since 1970 UTC, by the clock of its node."""
    rank: int
    attempt: int
    node: str
    number: int
    """Counts the lines of this rank and attempt from 0."""
    stream: str
    """`out` or `err`; empty if both went to the same place, such as a terminal: then it is unknown."""
    text: str
    """The line without its end. It has no secrets, and no control characters except tabs and colour codes."""
    is_open: bool = False
    """Whether its end has not been printed yet."""
    step: int | None = None
    """The last step that the rank had completed when it printed the line; None if unknown."""
    is_cut: bool = False
    """Whether the line was longer than what is kept of it."""
