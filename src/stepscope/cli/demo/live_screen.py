"""Show a live run: a table redrawn in place on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TextIO

from stepscope.cli.demo.live_table import clock, draw, one_line, step_range
from stepscope.cli.text.plain import Paint, plain
from stepscope.cli.text.screen import Screen, is_screen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.views.live_run import View

LINE_SECONDS = 5.0
"""Seconds of the run between two plain lines."""


class Display(Protocol):
    """Something that shows a live run."""

    def show(self, view: View) -> None:
        """Show the run as it is now."""

    def close(self) -> None:
        """Leave the terminal as it was found."""


class Table(Screen):
    """A table that is redrawn in place."""

    def show(self, view: View) -> None:
        """Draw the run over what was drawn before."""
        self.redraw(lambda columns, rows: draw(view, columns, rows))


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
