"""The ranks of a live run for the terminal: how late each is in each recent step, the worst first, and by node."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from stepscope.core.vocabulary import MEETING, phase_place
from stepscope.sources.rank_table import WELL, beyond

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepscope.core.arrays import Floats
    from stepscope.views.terminal import TerminalRank


@dataclass(frozen=True)
class RankLateness:
    """One rank and how late it is, in seconds per step; None where nothing was measured."""

    rank: TerminalRank
    own: float | None = None
    late: float | None = None
    slowest: str = ""
    """The phase in which it is the most beyond the median rank."""
    recent: Sequence[float] = ()
    """Seconds beyond the median of the others in each recent step, the newest last; NaN where it has no step."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each phase in a recent step."""

    @property
    def is_well(self) -> bool:
        """Whether it runs, or ended as it should."""
        return self.rank.state in (*WELL, "")


@dataclass(frozen=True)
class RankScene:
    """All ranks, the worst first."""

    ranks: Sequence[RankLateness]
    usual: float = 0.0
    """Seconds of a recent step of the median rank."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Median over the ranks of the seconds of each phase."""
    is_own: bool = True
    """Whether own time was measured; otherwise whole steps are compared."""

    def nodes(self) -> dict[str, list[RankLateness]]:
        """Return the ranks of each node, the node with the worst rank first."""
        found: dict[str, list[RankLateness]] = {}
        for one in self.ranks:
            found.setdefault(one.rank.node, []).append(one)
        return found


def lateness(ranks: Sequence[TerminalRank]) -> dict[int, tuple[float, float]]:
    """Return each rank's own seconds per step, and how far they are beyond the median of the other ranks.

    Ranks that synchronize in every step have equal step times; the late rank shows in the time before they meet. If
    that was not measured, the whole step counts.
    """
    own = {rank.rank: rank.own_seconds for rank in ranks}
    if any(seconds is None for seconds in own.values()):
        own = {rank.rank: rank.step_seconds for rank in ranks}
    known = {rank: seconds for rank, seconds in own.items() if seconds is not None}
    late = (
        beyond(np.array([*known.values()], float)[:, np.newaxis])[:, 0].tolist()
        if len(known) > 1
        else [0.0] * len(known)
    )
    return {rank: (seconds, own) for (rank, seconds), own in zip(known.items(), late, strict=True)}


def rank_scene(ranks: Iterable[TerminalRank]) -> RankScene:
    """Return what is shown of some ranks."""
    every = sorted(ranks, key=lambda rank: rank.rank)
    means = [{name: sum(some) / len(some) for name, some in rank.phases.items() if some} for rank in every]
    names = sorted({name for phases in means for name in phases}, key=lambda name: (phase_place(name), name))
    usual = {name: median(phases.get(name, 0.0) for phases in means) for name in names}
    late, recent = lateness(every), _recent(every)
    rows = []
    for rank, phases, steps in zip(every, means, recent, strict=True):
        own, behind = late.get(rank.rank, (None, None))
        excess = {name: phases.get(name, 0.0) - usual[name] for name in names if name not in MEETING}
        slowest = max(excess, key=lambda name: excess[name], default="")
        rows.append(RankLateness(rank, own, behind, slowest, steps.tolist(), phases))
    lasted = [seconds for rank in every if (seconds := rank.step_seconds) is not None]
    is_own = all(rank.own_seconds is not None for rank in every)
    alone = sum(not row.is_well for row in rows) <= len(rows) // 2
    rows.sort(key=lambda row: (not row.rank.blame, row.is_well or not alone, -(row.late or 0.0), row.rank.rank))
    return RankScene(rows, median(lasted) if lasted else 0.0, usual, is_own)


def _recent(ranks: Sequence[TerminalRank]) -> Floats:
    """Return by how much each rank was beyond the median of the others in each recent step."""
    wide = max((len(rank.steps) for rank in ranks), default=0)
    own = np.full((len(ranks), wide), np.nan)
    for line, rank in zip(own, ranks, strict=True):
        steps = np.array(rank.steps, float)
        for name in MEETING:
            waited = rank.phases.get(name, ())
            if len(waited) == len(steps):
                steps -= np.array(waited, float)
        line[wide - len(steps) :] = steps
    return beyond(own)
