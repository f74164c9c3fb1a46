"""Styled text as plain data: a line is a list of (text, style) pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.terminal_text import bar_of, cut, level_of, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    Span = tuple[str, str]
    """Text, and its style by name: see theme.py."""
    Line = list[Span]


def left(text: str, width: int) -> str:
    """Return the text left-aligned in `width` columns."""
    shown = cut(text, width)
    return shown + " " * (width - width_of(shown))


def right(text: str, width: int) -> str:
    """Return the text right-aligned in `width` columns."""
    shown = cut(text, width)
    return " " * (width - width_of(shown)) + shown


def length(line: Sequence[Span]) -> int:
    """Return the columns of a line."""
    return sum(width_of(text) for text, _ in line)


def fitted(line: Sequence[Span], width: int) -> Line:
    """Return a line of exactly so many columns: cut, or filled with blanks."""
    found: Line = []
    room = width
    for text, style in line:
        taken = width_of(text)
        if taken > room:
            text = cut(text, room)  # noqa: PLW2901 - the rest does not fit
            taken = width_of(text)
        if text:
            found.append((text, style))
        room -= taken
        if room <= 0:
            return found
    return [*found, (" " * room, "")]


def apart(start: Sequence[Span], end: Sequence[Span], width: int) -> Line:
    """Return a line with one part at the left and one at the right; the left part is cut if needed."""
    room = width - length(end)
    if room < 4:
        return fitted(start, width)
    kept = fitted(start, room - 1)
    return [*kept, (" ", ""), *end]


def meter(share: float | None, width: int, style: str) -> Line:
    """Return a bar of a share from 0 to 1, in eighths of a column."""
    if share is None:
        return [("·" * width, "faint")]
    full = bar_of(share, width)
    return [(full, style), ("·" * (width - len(full)), "faint")]


def spark(levels: Sequence[float | None], width: int, top: float) -> str:
    """Return one row of small bars from 0 to `top`, the newest at the right; None leaves a gap."""
    shown = [" " if level is None or level != level else level_of(level / (top or 1.0)) for level in levels[-width:]]  # noqa: PLR0124 - NaN
    return "".join(shown).rjust(width)
