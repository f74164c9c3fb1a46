"""Who is late right now, from the files of the nodes: a few numbers of each rank, in a few milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analysis.stragglers.lateness import judge
from stepscope.analysis.stragglers.pace import StepTiming
from stepscope.store.states import newest_attempt

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.analysis.stragglers.lateness import Lateness
    from stepscope.store.states import NodeState


LATE = 0.1
"""Share of a step from which a rank is late, as in the alert and in the diagnosis."""


def lateness_now(nodes: Iterable[NodeState], share: float = LATE) -> Lateness | None:
    """Return who is late in the newest steps of the last attempt, as the alert judges it; None if nobody is."""
    every = list(nodes)
    last = newest_attempt(every)
    states = [
        state
        for node in every
        if node.attempt == last and not node.ended
        for state in node.ranks.values()
        if state.state == "running"
    ]
    timings = (StepTiming.of(state.pace) for state in states if state.pace)
    return judge([timing for timing in timings if timing is not None], share)
