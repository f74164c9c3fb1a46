"""Progress of long work with rate and time left: on a terminal, on standard error, gone when done; silent elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol, TextIO

from stepscope.core.numbers import format_duration, format_share, format_value

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from rich.progress import Progress, TaskID

DELAY = 0.5
"""Seconds before anything is shown: short work shows nothing."""
EVERY = 0.1
"""Seconds between two updates."""
BAR = 24


class Advance(Protocol):
    """Reports progress."""

    def __call__(self, done: float = 1.0, what: str = "") -> None:
        """Add `done` to the work done, and name the current item."""


@contextlib.contextmanager
def progress(
    title: str,
    total: float | None = None,
    unit: str = "",
    *,
    options: argparse.Namespace | None = None,
    stream: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Advance]:
    """Show a progress bar once some work takes longer than DELAY.

    Args:
        title: name of the work.
        total: amount of work; None if unknown.
        unit: of `total`, such as "points" or "bytes".
        options: of the command; nothing is shown with `--quiet` and `--json`.
        stream: standard error by default; nothing is shown unless it is a terminal.
        environ: TERM=dumb shows nothing.
    """
    stream = sys.stderr if stream is None else stream
    wanted = options is None or not (getattr(options, "quiet", False) or getattr(options, "json", None) is True)
    environ = os.environ if environ is None else environ
    if not wanted or not stream.isatty() or environ.get("TERM", "dumb") == "dumb":
        yield _silently
        return
    shown = Shown(title, total, unit, stream)
    timer = threading.Timer(DELAY, shown.begin)
    timer.daemon = True
    timer.start()
    try:
        yield shown.advance
    finally:
        timer.cancel()
        shown.end()


class Shown:
    """A progress bar with rate and time remaining."""

    def __init__(
        self,
        title: str,
        total: float | None,
        unit: str,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock; nothing is shown before `begin`."""
        self._title, self._total, self._unit, self._stream, self._clock = title, total, unit, stream, clock
        self._began = self._told = clock()
        self._done, self._what, self._over = 0.0, "", False
        self._shown: tuple[Progress, TaskID] | None = None
        self._lock = threading.Lock()

    def advance(self, done: float = 1.0, what: str = "") -> None:
        """Add to the work done."""
        self._done += done
        self._what = what or self._what
        now = self._clock()
        if now - self._told >= EVERY:
            self._told = now
            self._draw()

    def begin(self) -> None:
        """Show it from now on."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(BAR),
            TextColumn("{task.fields[told]}", markup=False, style="bright_black"),
        )
        with self._lock:
            if self._over:
                return
            found = Progress(*columns, console=Console(file=self._stream), transient=True)
            self._shown = found, found.add_task(self._title, total=self._total, told="")
            found.start()
        self._draw()

    def end(self) -> None:
        """Show nothing any more."""
        with self._lock:
            self._over = True
            if self._shown is not None:
                self._shown[0].stop()
                self._shown = None

    def told(self) -> str:
        """Return share, rate and time remaining, as far as they are known."""
        seconds = self._clock() - self._began
        rate = self._done / seconds if seconds > 0 else 0.0
        parts = [format_share(min(1.0, self._done / self._total))] if self._total else []
        if rate and self._unit:
            parts.append(format_value(rate, f"{self._unit}/second"))
        if rate and self._total and self._done < self._total:
            parts.append(f"{format_duration(round((self._total - self._done) / rate))} left")
        elif not self._total or not rate:
            parts.append(format_duration(round(seconds)))
        return ", ".join(parts)

    def _draw(self) -> None:
        with self._lock:
            if self._shown is not None:
                shown, task = self._shown
                text = f"{self._title}: {self._what}" if self._what else self._title
                shown.update(task, completed=self._done, description=text, told=self.told())


def _silently(done: float = 1.0, what: str = "") -> None:
    """Ignore the progress."""
