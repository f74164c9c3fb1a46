"""Read how the nodes of a run came and went, by one clock for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.analysis.clocks import UNKNOWN, ClockOffset
from stepscope.analysis.node_fates import NodeFate, NodeLife, RankLife, node_fates
from stepscope.sources.attempts import nodes_of
from stepscope.sources.clocks import clock_offsets
from stepscope.store.states import newest_attempt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.store.reader import Past
    from stepscope.store.states import NodeState

UNKNOWN_SPREAD = 60.0
"""Seconds by which a clock may be wrong whose offset could not be estimated."""


def fates_of(past: Past, nodes: Sequence[NodeState] | None = None) -> list[NodeFate]:
    """Return the fate of each node in each attempt; `nodes` need not be read again if they are given."""
    known = list(nodes_of(past) if nodes is None else nodes)
    last = newest_attempt(known)
    known = [node for node in known if node.attempt <= last]  # not the second process of a rank
    if len({node.node for node in known}) < 2:
        return node_fates(lives_of(known, {}))
    return node_fates(lives_of(known, clock_offsets(past)))


def lives_of(nodes: Sequence[NodeState], offsets: Mapping[str, ClockOffset]) -> list[NodeLife]:
    """Return what nodes recorded, without the differences of their clocks."""
    found = []
    for node in nodes:
        offset = offsets.get(node.node, ClockOffset(0.0, 0.0, UNKNOWN))
        spread = UNKNOWN_SPREAD if offset.source == UNKNOWN else offset.spread_seconds

        def true(moment: int | None, ahead: float = offset.seconds) -> float | None:
            return moment / 1e6 - ahead if moment else None

        ranks = [
            RankLife(number, rank.state, rank.cause, true(rank.started), true(rank.ended), rank.step)
            for number, rank in sorted(node.ranks.items())
        ]
        found.append(NodeLife(node.node, node.attempt, ranks, true(node.time), spread))
    return found
