"""Text for a terminal: nothing in it can act, it fits, and it has colour only where that is seen."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from stepscope.core.names import REPLACEMENT, UNSAFE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ELLIPSIS = "…"
WIDTH = 120
"""Columns where nobody says how many there are: in a pipe or a file."""
NARROWEST = 60
BLANKS = str.maketrans({"\n": " ", "\r": " ", "\t": " ", "\u2028": " ", "\u2029": " "})
CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"
BAD = "!"
"""In a sparkline: a stretch that holds a value which is not finite."""


def plain(text: object, limit: int = 2000) -> str:
    """Return a run's text on one line, without control characters or escape sequences."""
    return UNSAFE.sub(REPLACEMENT, str(text)[:limit].translate(BLANKS))


def plain_lines(text: str) -> str:
    """Return text like `plain`, but keep its lines."""
    return "\n".join(plain(line) for line in text.split("\n"))


def width_of(text: str) -> int:
    """Return the columns that a text takes: two for wide characters, none for marks that sit on others."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Return the text, or as much of it as fits before an ellipsis."""
    if width_of(text) <= width:
        return text
    used, kept = 0, []
    for character in text:
        used += _columns(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept).rstrip() + ELLIPSIS if width > 0 else ""


def columns(environ: Mapping[str, str] | None = None) -> int:
    """Return how many columns there are to fill: as COLUMNS says, as the terminal says, or WIDTH."""
    environ = os.environ if environ is None else environ
    told = environ.get("COLUMNS", "")
    if told.isdecimal() and told.isascii() and 0 < int(told) < 10_000:
        return max(NARROWEST, int(told))
    if not sys.stdout.isatty():
        return WIDTH
    return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def shows_unicode(stream: TextIO | None = None) -> bool:
    """Say whether a stream can show blocks and ticks."""
    return (getattr(stream or sys.stdout, "encoding", "") or "").lower().replace("-", "").startswith("utf")


def is_screen(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a stream is a terminal that moves its cursor and shows block characters."""
    environ = os.environ if environ is None else environ
    return stream.isatty() and environ.get("TERM", "dumb") != "dumb" and shows_unicode(stream)


def is_dashboard_terminal() -> bool:
    """Return whether the dashboard can run: it reads keys from standard input and draws on standard error."""
    return is_screen(sys.stdout) and sys.stdin.isatty() and sys.stderr.isatty()


@dataclass(frozen=True)
class Paint:
    """Colour, or none."""

    enabled: bool = False

    @classmethod
    def of(cls, stream: TextIO | None = None, environ: Mapping[str, str] | None = None) -> Paint:
        """Return colour for a terminal, unless NO_COLOR is set or the terminal has none."""
        environ = os.environ if environ is None else environ
        terminal = (stream or sys.stdout).isatty()
        return cls(terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb")

    def __call__(self, text: str, style: str = "") -> str:
        """Return the text in a style: names of CODES, separated by blanks."""
        if not self.enabled or not style or not text.strip():
            return text
        codes = ";".join(CODES[word] for word in style.split())
        return f"\x1b[{codes}m{text}\x1b[0m"


def bar(share: float, width: int) -> str:
    """Return a bar of a share from 0 to 1."""
    if not shows_unicode():
        return ("#" * round(share * width)).ljust(width)
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (EIGHTHS[part] if part else "")).ljust(width)


def sparkline(values: Sequence[float | None]) -> str:
    """Return a line of small bars, lowest to highest; None (not finite) has a mark of its own."""
    known = [value for value in values if value is not None]
    if not known or not shows_unicode():
        return ""
    low, span = min(known), max(known) - min(known)
    top = len(LEVELS) - 1
    return "".join(
        BAD if value is None else LEVELS[round((value - low) / span * top) if span else 3] for value in values
    )
