"""A part of the terminal that is redrawn in place."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, TextIO

from stepscope.cli.text.plain import Paint, shows_unicode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Span = tuple[str, str]
    """Text and its style, as `Paint` takes it."""
    Line = Sequence[Span]

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
"""Around one frame: a terminal that knows these shows it at once; others pass them over."""
CLEAR, TO_LINE_END, TO_SCREEN_END = "\x1b[H\x1b[2J", "\x1b[K", "\x1b[J"


def is_screen(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Say whether lines can be redrawn in place: a terminal that moves its cursor and shows blocks."""
    environ = os.environ if environ is None else environ
    return stream.isatty() and environ.get("TERM", "dumb") != "dumb" and shows_unicode(stream)


class Screen:
    """Lines that are redrawn in place: their characters are written again, nothing is cleared, no line scrolls."""

    def __init__(
        self, stream: TextIO, paint: Paint, size: Callable[[], tuple[int, int]] = shutil.get_terminal_size
    ) -> None:
        """Draw on a terminal; `size` says its columns and rows."""
        self._stream, self._paint, self._size = stream, paint, size
        self._drawn = 0
        self._at: tuple[int, int] | None = None

    def redraw(self, draw: Callable[[int, int], Sequence[Line]]) -> None:
        """Write what `draw` returns for so many columns and rows over what was drawn before."""
        columns, rows = self._size()
        lines = [self._text(line) for line in draw(columns, rows)]
        if self._at is None:
            up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
            start = HIDE + "\n" * (len(lines) - 1) + f"{up}\r"
        elif self._at != (columns, rows):
            start = CLEAR
        else:
            start = f"\x1b[{self._drawn - 1}A\r" if self._drawn > 1 else "\r"
        body = "\r\n".join(line + TO_LINE_END for line in lines)
        self._drawn, self._at = len(lines), (columns, rows)  # before writing: a signal may end us right after it
        self._stream.write(f"{BEGIN}{start}{NO_WRAP}{body}{TO_SCREEN_END}{WRAP}{END}")
        self._stream.flush()

    def close(self) -> None:
        """Go below the lines and show the cursor again."""
        if self._at is not None:
            self._stream.write(f"{WRAP}{SHOW}{END}\r\n")
            self._stream.flush()
            self._at = None

    def _text(self, line: Line) -> str:
        return "".join(self._paint(text, style) for text, style in line).rstrip(" ")
