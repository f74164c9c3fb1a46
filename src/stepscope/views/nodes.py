"""The nodes of a run as plain data: how they came and went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analysis import clocks
from stepscope.analysis.node_fates import fate_lines
from stepscope.sources.fates import fates_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.analysis.clocks import ClockOffset
    from stepscope.analysis.node_fates import NodeFate
    from stepscope.store.reader import Past
    from stepscope.store.states import NodeState

DEFINITION = (
    "a node joined late if it started a minute after the others, or is new in a later attempt; it left if the others "
    "trained on; it was preempted if it was asked to end; it died if it was killed or fell silent, and no other node's "
    "end explains that"
)


def nodes_view(past: Past, nodes: Sequence[NodeState] | None = None) -> dict[str, Any]:
    """Return what there is to tell of the nodes, and the fate of each in each attempt."""
    fates = fates_of(past, nodes)
    return {
        "count": len({fate.host for fate in fates}),
        "told": len({fate.host for fate in fates if not fate.is_ordinary}),
        "lines": fate_lines(fates),
        "fates": [fate.as_dict() for fate in fates],
    }


def node_notes(fates: Sequence[NodeFate], offsets: Mapping[str, ClockOffset], attempt: int) -> dict[str, str]:
    """Return what there is to say of each node of an attempt, in a few words; "" for most of them."""
    found = {}
    for fate in fates:
        if fate.attempt == attempt:
            parts = [fate.arrival and f"{fate.arrival} {fate.arrival_text}"]
            parts += [fate.departure and f"{fate.departure}: {fate.departure_text}", _clock(offsets.get(fate.node))]
            found[fate.node] = "; ".join(filter(None, parts))
    return found


def _clock(offset: ClockOffset | None) -> str:
    if offset is None or abs(offset.seconds) < clocks.WORTH_SAYING:
        return ""
    return f"its clock is {clocks.ahead(offset.seconds)}"
