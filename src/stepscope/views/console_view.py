"""The lines of a run's consoles, for the page and the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.redact import redact_text
from stepscope.store.console_segments import find_segments
from stepscope.store.layout import RunFolder

if TYPE_CHECKING:
    from stepscope.store.console import ConsoleQuery
    from stepscope.store.reader import Past

MOST_TEXT = 16_384
"""Characters of a line that are shown."""


def printed_lines(past: Past, query: ConsoleQuery) -> dict[str, Any]:
    """Return the lines that a query selects, and which ranks have a console at all.

    Raises:
        UsageError: the pattern, the level or the cursor is not one.
    """
    writers = find_segments(RunFolder(past.path))
    answer = past.console(query)
    lines = [
        {**line._asdict(), "text": line.text[:MOST_TEXT], "is_cut": line.is_cut or len(line.text) > MOST_TEXT}
        for line in answer.lines
    ]
    return {
        "lines": lines,
        "cursor": answer.cursor,
        "more": answer.more,
        "dropped": answer.dropped,
        "problems": [redact_text(problem) for problem in answer.problems],
        "ranks": sorted({who.rank for who in writers if query.attempt in {None, who.attempt}}),
        "exists": bool(writers),
    }
