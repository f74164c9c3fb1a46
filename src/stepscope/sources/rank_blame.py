"""Which ranks are the cause where all of them stand still or ended: by the verdict of the watchers, or the first error.

After a crash all ranks have failed, and in a hang all of them stand still. Their states name nobody then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analysis.hang.standing import standing_verdict
from stepscope.core.endings import is_bad
from stepscope.sources.clocks import true_events
from stepscope.sources.first_error import first_error_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepscope.store.reader import Past
    from stepscope.store.states import RankState

HANGS, FAILED = "causes the hang", "failed first"


def blamed_ranks(past: Past, attempt: int, states: Iterable[RankState]) -> dict[int, str]:
    """Return the ranks that are the cause of a hang or of the end of an attempt, each with what it did, in words."""
    known = list(states)
    found = dict.fromkeys(hanging_ranks(true_events(past), attempt), HANGS) if stands(known) else {}
    bad = sum(is_bad(state.state, state.cause) for state in known)
    first = first_error_of(past) if bad > 1 else None
    if first is not None and len(first.ranks) < bad:  # if all ended the same way, none was first
        found |= {first.rank: FAILED}
    return found


def stands(states: Iterable[RankState]) -> bool:
    """Return whether a verdict on a hang still counts: a watcher that was killed cannot take its verdict back.

    If all ranks finished, they did not hang.
    """
    known = list(states)
    stalled = any(state.stall or state.state != "running" for state in known)
    return stalled and any(state.state != "finished" for state in known)


def hanging_ranks(events: Iterable[Mapping[str, Any]], attempt: int) -> Sequence[int]:
    """Return the ranks that the newest verdict of the watchers about an attempt names; events are in order."""
    verdict = standing_verdict(event for event in events if event.get("attempt", attempt) == attempt)
    return () if verdict is None else verdict.ranks
