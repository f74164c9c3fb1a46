"""The notifier of a run, which also quotes the last lines of the rank that began its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.alerts.delivery import notifier
from stepscope.alerts.delivery.message import LastLines

if TYPE_CHECKING:
    from pathlib import Path


def last_lines_of(run: Path) -> LastLines:
    """Return the first error of a run and the last lines of its rank; empty if no rank ended with one."""
    from stepscope.sources.first_error import first_error_of
    from stepscope.store.layout import RunFolder
    from stepscope.store.reader import Past

    first = first_error_of(Past(RunFolder(run)))
    if first is None:
        return LastLines("")
    return LastLines(f"First error: {first.summary.rstrip('.')}. Last lines of rank {first.rank}:", first.lines)


def main(arguments: list[str]) -> int:
    """Send what is in the outbox; the argument, the run's folder, only labels this process in `ps`."""
    return notifier.main(arguments, last_lines_of)
