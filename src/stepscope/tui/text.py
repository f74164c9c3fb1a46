"""Styled text as plain data: a line is a list of (text, style) pairs, and nothing of a run can act on the terminal."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from stepscope.core.names import REPLACEMENT, UNSAFE

if TYPE_CHECKING:
    from collections.abc import Sequence

    Span = tuple[str, str]
    """Text, and its style by name: see theme.py. The width of the text is its number of columns, as `width` says."""
    Line = list[Span]

ELLIPSIS = "…"
BLANKS = str.maketrans({"\n": " ", "\r": " ", "\t": " ", "\u2028": " ", "\u2029": " "})
WIDE = re.compile("[^\\x20-\\u02ff\\u2000-\\u2bff]")
"""Characters that may take two columns, or none."""
EIGHTHS = " ▏▎▍▌▋▊▉"


def plain(text: object, limit: int = 500) -> str:
    """Return a run's text on one line, without control characters or escape sequences."""
    return UNSAFE.sub(REPLACEMENT, str(text)[:limit].translate(BLANKS))


def width_of(text: str) -> int:
    """Return the columns that a text takes."""
    return len(text) if WIDE.search(text) is None else sum(map(_columns, text))


def _columns(character: str) -> int:
    if character < "\u0300" or "\u2000" <= character <= "\u2bff":
        return 1
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return the text, or as much of it as fits before an ellipsis."""
    if width_of(text) <= width:
        return text
    used, kept = 0, ""
    for character in text:
        used += _columns(character)
        if used > width - 1:
            break
        kept += character
    return kept.rstrip() + ELLIPSIS if width > 0 else ""


def left(text: str, width: int) -> str:
    """Return the text at the left of so many columns."""
    shown = cut(text, width)
    return shown + " " * (width - width_of(shown))


def right(text: str, width: int) -> str:
    """Return the text at the right of so many columns."""
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
    """Return a line with one part at the left and one at the right; the left one is cut where both do not fit."""
    room = width - length(end)
    if room < 4:
        return fitted(start, width)
    kept = fitted(start, room - 1)
    return [*kept, (" ", ""), *end]


def meter(share: float | None, width: int, style: str) -> Line:
    """Return a bar of a share from 0 to 1, in eighths of a column."""
    if share is None:
        return [("·" * width, "faint")]
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, part = divmod(eighths, 8)
    full = "█" * whole + (EIGHTHS[part] if part else "")
    return [(full, style), ("·" * (width - len(full)), "faint")]


def spark(levels: Sequence[float | None], width: int, top: float) -> str:
    """Return one row of small bars from 0 to `top`, the newest at the right; a gap where there is none."""
    marks = "▁▂▃▄▅▆▇█"
    shown = list(levels)[-width:]
    text = "".join(
        " " if level is None or level != level else marks[max(0, min(7, round(level / (top or 1.0) * 7)))]  # noqa: PLR0124 - NaN
        for level in shown
    )
    return text.rjust(width)
