"""The verdict on a hang that the watchers wrote into the run, for as long as the ranks have not moved since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analysis.hang.suspicion import KINDS, NONE, SOURCES
from stepscope.analysis.hang.verdict import HangVerdict
from stepscope.core.events import HANG_VERDICT, ours

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_SENTENCES = 20
"""Sentences of each source that are read."""


def standing_verdict(events: Iterable[Mapping[str, Any]]) -> HangVerdict | None:
    """Return the last verdict among the events of one attempt, in order of time; None without one, or if it is over."""
    told = [event for event in ours(events) if event.get("kind") == HANG_VERDICT]
    kind = told[-1].get("verdict") if told else NONE
    if kind == NONE or kind not in KINDS:
        return None
    event, shown = told[-1], told[-1].get("evidence", {})
    sure = event.get("confidence")
    return HangVerdict(
        str(kind),
        _numbers(event.get("ranks")),
        _numbers(event.get("waiting")),
        str(event.get("text", "")),
        {source: sentences for source in SOURCES if (sentences := _sentences(shown.get(source)))},
        str(event.get("remedy", "")),
        float(sure) if isinstance(sure, (int, float)) and 0 <= sure <= 1 else 0.0,
    )


def _numbers(value: Any) -> tuple[int, ...]:
    rows = value if isinstance(value, list) else ()
    return tuple(rank for rank in rows if isinstance(rank, int) and not isinstance(rank, bool))


def _sentences(value: Any) -> list[str]:
    rows = value[:MOST_SENTENCES] if isinstance(value, list) else ()
    return [one for one in rows if isinstance(one, str)]
