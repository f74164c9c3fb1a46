"""What all late ranks have in common, and no other rank has: their pipeline stage, experts or NUMA node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepscope.analysis.stragglers.cause import COMPUTE, HOST, WORK, Cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analysis.stragglers.pace import StepTiming


STAGE, EXPERTS, NUMA = "stage", "experts", "numa"
"""Reasons that a group shows."""
PLACES = {"pipeline": (STAGE, "pipeline stage"), "expert": (EXPERTS, "expert group"), "numa_node": (NUMA, "NUMA node")}
"""Facts that say where a rank is, with the reason and the name of such a place."""
FEWEST = 2
"""A single late rank has nothing in common with others."""
MOST = 1 << 30
"""Coordinates are smaller."""
STAYS = 0.05
"""A rank whose mean NUMA node is this near to a whole number stays on one."""


class SharedPlace(NamedTuple):
    """The place that late ranks share."""

    reason: str
    name: str
    """Such as "pipeline stage 3"."""


def group_of(late: Sequence[StepTiming], others: Sequence[StepTiming]) -> SharedPlace | None:
    """Return what all late ranks and no others have in common; None if nothing."""
    if len(late) < FEWEST:
        return None
    for fact, (reason, name) in PLACES.items():
        rest = others
        if reason == NUMA:  # each machine has its own
            if len({one.node for one in late}) > 1:
                continue
            rest = [one for one in others if one.node == late[0].node]
        mine, theirs = ({_place(one, fact) for one in some} for some in (late, rest))
        if len(mine) == 1 and theirs and None not in mine | theirs and not mine & theirs:
            (number,) = mine
            return SharedPlace(reason, f"{name} {number}")
    return None


def grouped(cause: Cause, group: SharedPlace) -> Cause:
    """Return the cause of a late rank with what its group shows."""
    text = f"all ranks of {group.name} are late, and no other; {cause.text}"
    if group.reason == NUMA:
        return Cause(cause.kind, text, cause.reason or NUMA) if cause.kind in (COMPUTE, HOST) else cause
    return Cause(WORK, text, group.reason) if cause.kind in (COMPUTE, "") and not cause.reason else cause


def place_facts(coordinates: object) -> dict[str, float]:
    """Return the facts in the coordinates of a rank: its pipeline stage and group of experts."""
    places = coordinates.items() if isinstance(coordinates, dict) else ()
    return {name: float(at) for name, at in places if name in PLACES and isinstance(at, int) and abs(at) < MOST}


def _place(one: StepTiming, fact: str) -> int | None:
    value = one.facts.get(fact)
    return round(value) if value is not None and abs(value - round(value)) <= STAYS else None
