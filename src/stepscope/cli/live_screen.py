"""Show a live run: a table redrawn in place on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Protocol, TextIO

from stepscope.cli.live_table import clock, draw, one_line, step_range
from stepscope.cli.text import Paint, plain, shows_unicode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.cli.live import View
    from stepscope.cli.live_table import Line

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"
"""Around one frame: a terminal that knows these shows it at once; others pass them over."""
CLEAR, TO_LINE_END, TO_SCREEN_END = "\x1b[H\x1b[2J", "\x1b[K", "\x1b[J"
LINE_SECONDS = 5.0
"""Seconds of the run between two plain lines."""


class Display(Protocol):
    """Something that shows a live run."""

    def show(self, view: View) -> None:
        """Show the run as it is now."""

    def close(self) -> None:
        """Leave the terminal as it was found."""


def is_screen(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Say whether a table can be redrawn in place: a terminal that moves its cursor and shows blocks."""
    environ = os.environ if environ is None else environ
    return stream.isatty() and environ.get("TERM", "dumb") != "dumb" and shows_unicode(stream)


class Table:
    """A table that is redrawn in place: its characters are written again, nothing is cleared, no line scrolls."""

    def __init__(
        self, stream: TextIO, paint: Paint, size: Callable[[], tuple[int, int]] = shutil.get_terminal_size
    ) -> None:
        """Draw on a terminal; `size` says its columns and rows."""
        self._stream, self._paint, self._size = stream, paint, size
        self._drawn = 0
        self._at: tuple[int, int] | None = None

    def show(self, view: View) -> None:
        """Draw the run over what was drawn before."""
        columns, rows = self._size()
        lines = [self._text(line) for line in draw(view, columns, rows)]
        if self._at is None:
            start = HIDE + "\n" * (len(lines) - 1) + f"\x1b[{len(lines) - 1}A\r"
        elif self._at != (columns, rows):
            start = CLEAR
        else:
            start = f"\x1b[{self._drawn - 1}A\r" if self._drawn > 1 else "\r"
        body = "\r\n".join(line + TO_LINE_END for line in lines)
        self._drawn, self._at = len(lines), (columns, rows)  # before writing: a signal may end us right after it
        self._stream.write(f"{BEGIN}{start}{NO_WRAP}{body}{TO_SCREEN_END}{WRAP}{END}")
        self._stream.flush()

    def close(self) -> None:
        """Go below the table and show the cursor again."""
        if self._at is not None:
            self._stream.write(f"{WRAP}{SHOW}{END}\r\n")
            self._stream.flush()
            self._at = None

    def _text(self, line: Line) -> str:
        return "".join(self._paint(text, style) for text, style in line).rstrip(" ")


class Lines:
    """A line for every few seconds of the run, and one for everything that happens."""

    def __init__(self, stream: TextIO) -> None:
        """Write to a file, a pipe or a simple terminal."""
        self._stream = stream
        self._due = 0.0
        self._told: set[tuple[str, int]] = set()

    def show(self, view: View) -> None:
        """Write what is new, if anything."""
        for one in view.happenings:
            if (one.label, one.count) not in self._told:
                self._told.add((one.label, one.count))
                self._write(f"{clock(view.elapsed)}  {plain(one.label)} at step {step_range(one)}: {plain(one.why)}")
        if view.steps and view.elapsed >= self._due:
            self._due = view.elapsed + LINE_SECONDS
            self._write(one_line(view))

    def close(self) -> None:
        """Do nothing: lines need no end."""

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def display(stream: TextIO, environ: Mapping[str, str] | None = None) -> Display:
    """Return what fits the stream."""
    if is_screen(stream, environ):
        return Table(stream, Paint.of(stream, environ))
    return Lines(stream)
