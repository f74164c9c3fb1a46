"""Print a live run as plain lines, for a pipe, a file or a simple terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.numbers import format_duration, format_share, format_value
from stepscope.core.terminal_text import plain
from stepscope.core.vocabulary import unit_of

if TYPE_CHECKING:
    from typing import TextIO

    from stepscope.cli.demo.progress import DemoProgress, EventSummary

LINE_SECONDS = 5.0
"""Seconds of the run between two lines."""
NAMES = {"process/memory_bytes": "memory"}


class RunLines:
    """Writes one line every few seconds of the run, and one for each event."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream = stream
        self._due = 0.0
        self._printed: set[tuple[str, int]] = set()

    def show(self, view: DemoProgress) -> None:
        """Write the new events, and the state of the run if a line is due."""
        for event in view.happenings:
            if (event.label, event.count) not in self._printed:
                self._printed.add((event.label, event.count))
                when = format_duration(round(view.elapsed))
                self._write(f"{when}  {plain(event.label)} at step {step_range(event)}: {plain(event.why)}")
        if view.steps and view.elapsed >= self._due:
            self._due = view.elapsed + LINE_SECONDS
            self._write(one_line(view))

    def _write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def one_line(view: DemoProgress) -> str:
    """Return the state of a run on one line."""
    of = f"/{view.total}" if view.total is not None else ""
    parts = [format_duration(round(view.elapsed)), f"step {view.steps}{of}"]
    if view.rates.steps_per_second is not None:
        parts.append(format_value(view.rates.steps_per_second, "steps/second"))
    for name in ("loss", "accuracy", "process/memory_bytes"):
        curve = view.curves.get(name)
        if curve is not None:
            parts.append(f"{NAMES.get(name, name)} {format_value(curve.last, unit_of(name))}")
    if view.phases:
        name, share = max(view.phases.items(), key=lambda phase: phase[1])
        parts.append(f"{name} {format_share(share)} of the step")
    return "  ".join(parts)


def step_range(event: EventSummary) -> str:
    """Return the steps at which something happened: "120", or "120-140"."""
    if event.step is None:
        return ""
    if event.until is not None and event.until > event.step:
        return f"{event.step}-{event.until}"
    return str(event.step)
