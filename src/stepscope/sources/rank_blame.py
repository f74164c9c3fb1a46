"""Which ranks are the cause where all of them stand still or ended: by the verdict of the watchers, or the first error.

After a crash all ranks have failed, and in a hang all of them stand still. Their states name nobody then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.core.endings import is_bad
from stepscope.core.events import HANG_VERDICT, ours
from stepscope.sources.first_error import first_error_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepscope.store.reader import Past
    from stepscope.store.states import RankState

NONE = "none"
HANGS, FAILED = "causes the hang", "failed first"


def blamed_ranks(past: Past, attempt: int, states: Iterable[RankState]) -> dict[int, str]:
    """Return the ranks that are the cause of a hang or of the end of an attempt, each with what it did, in words."""
    known = list(states)
    found = dict.fromkeys(hanging_ranks(past.events(), attempt), HANGS) if any(state.stall for state in known) else {}
    if sum(is_bad(state.state, state.cause) for state in known) > 1:
        first = first_error_of(past)
        found |= {} if first is None else {first.rank: FAILED}
    return found


def hanging_ranks(events: Iterable[Mapping[str, Any]], attempt: int) -> list[int]:
    """Return the ranks that the newest verdict of the watchers about an attempt names; events are in order."""
    found: list[Any] = []
    for event in ours(events):
        if event.get("kind") == HANG_VERDICT and event.get("attempt", attempt) == attempt:
            ranks = event.get("ranks")
            found = ranks if event.get("verdict") != NONE and isinstance(ranks, list) else []
    return [rank for rank in found if isinstance(rank, int)]
