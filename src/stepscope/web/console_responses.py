"""Types of the responses about consoles and the first error of a run; see `responses`."""

from __future__ import annotations

from stepscope.web.json_object import Response


class FoldedErrorRow(Response):
    """Errors of other ranks that follow from the first one."""

    ranks: list[int]
    line: str
    why: str


class FirstErrorRow(Response):
    """The error that the others follow from; `rank` is the cause only if `ranks` has it."""

    rank: int
    node: str
    time: float | None
    kind: str
    summary: str
    ranks: list[int]
    error: str
    lines: list[str]
    chain: list[str]
    """Exceptions, root cause first."""
    others: list[FoldedErrorRow]
    confidence: float
    why: str
    step: int | None
    local_time: float | None
    """The time by the clock of its own node."""


class PrintedLine(Response):
    """One line that a rank printed."""

    time: float
    """By the clock of its node."""
    rank: int
    attempt: int
    node: str
    number: int
    """Counts the lines of the rank and attempt from 0."""
    stream: str
    """out or err; empty if both went to the same place."""
    text: str
    """Without its end; may contain colour codes."""
    step: int | None
    is_open: bool
    """Whether the line has no end yet."""
    is_cut: bool
    """Whether the line was longer than what is kept."""
    is_error: bool
    """Whether it has a word that programs use for errors."""


class PrintedLines(Response):
    """Lines of the consoles of a run, in the order of time."""

    lines: list[PrintedLine]
    cursor: str
    """Where the lines end, for the next request."""
    more: bool
    """Whether there are further lines behind the cursor now."""
    dropped: int
    """Lines of these ranks that were printed but not kept."""
    problems: list[str]
    ranks: list[int]
    """Ranks with a console, without the limit of the request."""
    step_time: float | None
    """When the step that was asked for ended."""
    exists: bool
    """Whether the run has any console."""
