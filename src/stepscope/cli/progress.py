"""Progress of long work with rate and time left: on a terminal, on standard error, gone when done; silent elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DELAY = 0.5
"""Work that takes less shows nothing: the first parts of it pass in silence."""


class Advance(Protocol):
    """Tells how far work is."""

    def __call__(self, done: float = 1.0, what: str = "") -> None:
        """Say that `done` more is done, and what is being done now."""


@contextlib.contextmanager
def progress(
    title: str,
    total: float | None = None,
    unit: str = "",
    stream: TextIO | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Advance]:
    """Show how far some work is.

    Args:
        title: what is done.
        total: how much there is to do; None if nobody knows.
        unit: of `total`, such as "points"; "bytes" is shown in MiB.
        stream: standard error by default.
        environ: TERM=dumb shows nothing.
    """
    stream = sys.stderr if stream is None else stream
    if not stream.isatty() or (os.environ if environ is None else environ).get("TERM", "dumb") == "dumb":
        yield _silently
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.fields[rate]}", style="bright_black")
    columns = [
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(28),
        TaskProgressColumn(),
        rate,
    ]
    shown = Progress(*columns, TimeRemainingColumn(), console=Console(file=stream), transient=True)
    with shown:
        task = shown.add_task(title, total=total, rate="")

        def advance(done: float = 1.0, what: str = "") -> None:
            known = next(one for one in shown.tasks if one.id == task)
            speed = _rate(known.speed, unit)
            text = f"{title}: {what}" if what else title
            shown.update(task, advance=done, description=text, rate=speed)

        yield advance


def _silently(done: float = 1.0, what: str = "") -> None:
    """Take note of nothing."""


def _rate(speed: float | None, unit: str) -> str:
    if not speed or not unit:
        return ""
    return f"{speed / 2**20:.1f} MiB/s" if unit == "bytes" else f"{speed:,.0f} {unit}/s".replace(",", " ")
