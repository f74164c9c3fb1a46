"""What detectors that compare ranks know beyond the series of their own node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.analysis.stragglers.pace import StepTiming


@dataclass
class JobFacts:
    """What a node knows beyond its own series: itself, its ranks' machines, and the ranks of other nodes."""

    node: str = ""
    facts: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """By rank: see `stepscope.analysis.stragglers.cause.FACTS`."""
    elsewhere: Sequence[StepTiming] = ()
    """The newest timing of each rank of another node."""
    own: Sequence[StepTiming] = ()
    """The newest timing of each rank of this node, as the detector has found it."""
