"""Text for a terminal: without control characters, measured in columns, cut to fit, and small bars."""

from __future__ import annotations

import re
import unicodedata

from stepscope.core.names import REPLACEMENT, UNSAFE

ELLIPSIS = "…"
BLANKS = str.maketrans({"\n": " ", "\r": " ", "\t": " ", "\u2028": " ", "\u2029": " "})
WIDE = re.compile("[^\\x20-\\u02ff\\u2000-\\u2bff]")
"""Characters that may take two columns, or none."""
EIGHTHS = " ▏▎▍▌▋▊▉"
LEVELS = "▁▂▃▄▅▆▇█"


def plain(text: object, limit: int = 2000) -> str:
    """Return text on one line, without characters that act on a terminal."""
    return UNSAFE.sub(REPLACEMENT, str(text)[:limit].translate(BLANKS))


def plain_lines(text: str) -> str:
    """Return text like `plain`, but keep its lines."""
    return "\n".join(plain(line) for line in text.split("\n"))


def width_of(text: str) -> int:
    """Return the columns of a text: two for wide characters, none for combining marks."""
    return len(text) if WIDE.search(text) is None else sum(map(_columns, text))


def _columns(character: str) -> int:
    if character < "\u0300" or "\u2000" <= character <= "\u2bff":
        return 1
    if unicodedata.combining(character) or unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return the text, or as much of it as fits before an ellipsis."""
    if width_of(text) <= width:
        return text
    used, end = 0, 0
    for character in text:
        used += _columns(character)
        if used > width - 1:
            break
        end += 1
    return text[:end].rstrip() + ELLIPSIS if width > 0 else ""


def bar_of(share: float, width: int) -> str:
    """Return a bar for a share from 0 to 1, in eighths of a column, without trailing blanks."""
    whole, part = divmod(round(max(0.0, min(1.0, share)) * width * 8), 8)
    return "█" * whole + (EIGHTHS[part] if part else "")


def level_of(share: float) -> str:
    """Return the block character for a share from 0 to 1."""
    return LEVELS[max(0, min(len(LEVELS) - 1, round(share * (len(LEVELS) - 1))))]
