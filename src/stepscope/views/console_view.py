"""The lines of a run's consoles, for the page and the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.console_text import COLOUR
from stepscope.core.redact import redact_text
from stepscope.store.console import looks_like_error
from stepscope.store.console_segments import find_segments
from stepscope.store.layout import RunFolder
from stepscope.store.parquet import Selection

if TYPE_CHECKING:
    from collections.abc import Collection

    from stepscope.store.console import ConsoleQuery
    from stepscope.store.reader import Past

STEP = "step_seconds"
MOST_TEXT = 16_384
"""Characters of a line that are shown."""


def printed_lines(past: Past, query: ConsoleQuery, step: int | None = None) -> dict[str, Any]:
    """Return the lines that a query selects, which ranks have a console at all, and when a step ended.

    Raises:
        UsageError: the pattern, the level or the cursor is not one.
    """
    writers = find_segments(RunFolder(past.path))
    answer = past.console(query)
    lines = [
        {
            **line._asdict(),
            "text": line.text[:MOST_TEXT],
            "is_cut": line.is_cut or len(line.text) > MOST_TEXT,
            "is_error": looks_like_error(COLOUR.sub("", line.text[:MOST_TEXT])),
        }
        for line in answer.lines
    ]
    return {
        "lines": lines,
        "cursor": answer.cursor,
        "more": answer.more,
        "dropped": answer.dropped,
        "problems": [redact_text(problem) for problem in answer.problems],
        "ranks": sorted({who.rank for who in writers if query.attempt in {None, who.attempt}}),
        "step_time": None if step is None else time_of_step(past, step, query.ranks),
        "exists": bool(writers),
    }


def time_of_step(past: Past, step: int, ranks: Collection[int] | None = None) -> float | None:
    """Return when a step ended in the last attempt that made it, in seconds since 1970; None if it is unknown."""
    chosen = Selection({STEP}, ranks=None if ranks is None else tuple(ranks), step_range=(step, step))
    found = past.read(lambda snapshot, connection: snapshot.points(chosen, connection))
    if not len(found):
        return None
    return float(found.time[found.attempt == found.attempt.max()].min()) / 1e6
