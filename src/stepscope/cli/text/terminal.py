"""What the terminal is: its width, whether it shows colour and blocks, and bars that fit it."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from stepscope.core.terminal_text import bar_of, level_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH = 120
"""Columns in a pipe or a file."""
NARROWEST = 60
CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
BAD = "!"
"""In a sparkline: an interval with a value that is not finite."""


def columns(environ: Mapping[str, str] | None = None) -> int:
    """Return the columns to fill: COLUMNS, the width of the terminal, or WIDTH."""
    environ = os.environ if environ is None else environ
    given = environ.get("COLUMNS", "")
    if given.isdecimal() and given.isascii() and 0 < int(given) < 10_000:
        return max(NARROWEST, int(given))
    if not sys.stdout.isatty():
        return WIDTH
    return max(NARROWEST, shutil.get_terminal_size((WIDTH, 24)).columns)


def shows_unicode(stream: TextIO | None = None) -> bool:
    """Return whether a stream can show block characters."""
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
    """Colours text, or leaves it as it is."""

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
    return bar_of(share, width).ljust(width)


def sparkline(values: Sequence[float | None]) -> str:
    """Return a row of small bars from the lowest to the highest value; None (not finite) is marked `!`."""
    known = [value for value in values if value is not None]
    if not known or not shows_unicode():
        return ""
    low, span = min(known), max(known) - min(known)
    return "".join(BAD if value is None else level_of((value - low) / span if span else 3 / 7) for value in values)
