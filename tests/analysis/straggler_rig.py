"""Jobs that never ran: the steps of many ranks with phases, noise, and a rank that is late for a known reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.stragglers.pace import StepTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

USUAL = {"data": 0.002, "forward": 0.02, "backward": 0.04, "optimizer": 0.004, "other": 0.002}
"""Seconds of the phases of a step by themselves."""


@dataclass(frozen=True)
class Job:
    """A synchronous training; `slow` adds to a phase of a rank: seconds, or an array of seconds by step."""

    ranks: int = 8
    steps: int = 200
    per_node: int = 8
    noise: float = 0.05
    seed: int = 0
    slow: Mapping[tuple[int, str], float | Numbers] = field(default_factory=dict)
    meets_in: str = "backward"
    """The phase in which the ranks wait for the latest."""
    usual: Mapping[str, float] = field(default_factory=lambda: USUAL)
    facts: Sequence[Mapping[str, float]] = ()

    def table(self) -> StepTable:
        """Return its steps: each rank waits in the meeting phase until the latest has come."""
        chance = np.random.default_rng(self.seed)
        shape = self.ranks, self.steps
        phases = {name: value * chance.normal(1, self.noise, shape).clip(0.3) for name, value in self.usual.items()}
        for (rank, name), more in self.slow.items():
            phases.setdefault(name, np.zeros(shape))
            phases[name][rank] += more * chance.normal(1, self.noise, self.steps).clip(0.3)
        own = sum(phases.values(), np.zeros(shape))
        phases[self.meets_in] = phases.get(self.meets_in, np.zeros(shape)) + own.max(axis=0) - own
        seconds = np.asarray(sum(phases.values(), np.zeros(shape)))
        nodes = [f"node-{rank // self.per_node}" for rank in range(self.ranks)]
        return StepTable(range(self.ranks), np.arange(self.steps), seconds, phases, nodes, self.facts)
