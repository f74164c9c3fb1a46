"""Pipelined trainings that never ran: a simulator of the 1F1B schedule, as in ByteDance's traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.diagnosis.pipeline import Operations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

FORWARD, BACKWARD = 0, 1
NAMES = ("forward", "backward")
TRANSFER, MEETING, OPTIMIZER = 0.001, 0.01, 0.02


@dataclass(frozen=True)
class Pipeline:
    """A training of several replicas and stages. `slow` has factors by (stage, replica); -1 stands for all."""

    replicas: int = 2
    stages: int = 4
    batches: int = 4
    steps: int = 12
    seed: int = 0
    noise: float = 0.005
    slow: Mapping[tuple[int, int], float] = field(default_factory=dict)
    lengths: float = 0.0
    """Spread of the work of micro-batches; forward and backward passes have the same."""
    pauses: float = 0.0
    """Seconds of a garbage collection, at random in one of ten forward passes."""

    def seconds(self) -> Numbers:
        """Return the compute time by kind, step, replica, stage and micro-batch."""
        chance = np.random.default_rng(self.seed)
        shape = 2, self.steps, self.replicas, self.stages, self.batches
        found = np.array([0.05, 0.1]).reshape(2, 1, 1, 1, 1) * chance.normal(1, self.noise, shape)
        found *= np.exp(chance.normal(0, self.lengths, (1, self.steps, self.replicas, 1, self.batches)))
        for (stage, replica), factor in self.slow.items():
            found[:, :, slice(None) if replica < 0 else replica, slice(None) if stage < 0 else stage] *= factor
        if self.pauses:
            found[FORWARD] += self.pauses * (chance.random(shape[1:]) < 0.1)
        return found

    def order(self, stage: int) -> list[tuple[int, int]]:
        """Return the passes of a stage in their order: as many forward as needed, then one of each in turn."""
        ahead = min(self.stages - stage - 1, self.batches)
        found = [(FORWARD, batch) for batch in range(ahead)]
        for batch in range(self.batches - ahead):
            found += [(FORWARD, ahead + batch), (BACKWARD, batch)]
        return found + [(BACKWARD, batch) for batch in range(self.batches - ahead, self.batches)]

    def simulate(self, seconds: Numbers) -> tuple[Operations, float]:
        """Return the operations, and the mean seconds of a step."""
        rows: list[tuple[int, int, int, str, int, float, float]] = []
        total = 0.0
        for step in range(self.steps):
            clock = np.zeros((self.replicas, self.stages))
            for replica in range(self.replicas):
                self._passes(step, replica, seconds[:, step, replica], clock[replica], rows)
            for stage in range(self.stages):  # the same stage of all replicas meets
                end = clock[:, stage].max() + MEETING
                for replica in range(self.replicas):
                    start = clock[replica, stage]
                    rows.append((step, replica, stage, "grads-reduce-scatter", 0, 10 * step + start, end - start))
                clock[:, stage] = end
            rows += [
                (step, replica, stage, "optimizer", 0, 10 * step + clock[replica, stage], OPTIMIZER)
                for stage in range(self.stages)
                for replica in range(self.replicas)
            ]
            total += float(clock.max()) + OPTIMIZER
        columns = list(zip(*rows, strict=True))
        steps, replicas, stages, sequence = (np.array(columns[at], np.int64) for at in (0, 1, 2, 4))
        starts, lasted = (np.array(columns[at], np.float64) for at in (5, 6))
        kinds = np.array(columns[3], object)
        return Operations(steps, replicas, stages, kinds, sequence, starts, lasted), total / self.steps

    def _passes(self, step: int, replica: int, seconds: Numbers, clock: Numbers, rows: list) -> None:
        done: dict[tuple[int, int, int], float] = {}
        left = {stage: self.order(stage) for stage in range(self.stages)}
        while any(left.values()):
            for stage in range(self.stages):
                while left[stage]:
                    kind, batch = left[stage][0]
                    before = stage - 1 if kind == FORWARD else stage + 1
                    ready = 0.0
                    if 0 <= before < self.stages:
                        sent = done.get((before, kind, batch))
                        if sent is None:
                            break
                        ready = max(sent, clock[stage]) + TRANSFER
                        name = NAMES[kind]
                        for who, what, start in ((stage, "recv", clock[stage]), (before, "send", sent)):
                            row = (step, replica, who, f"{name}-{what}", batch, 10 * step + start, ready - start)
                            rows.append(row)
                    start = max(float(clock[stage]), ready)
                    lasts = float(seconds[kind, stage, batch])
                    rows.append((step, replica, stage, f"{NAMES[kind]}-compute", batch, 10 * step + start, lasts))
                    clock[stage] = done[stage, kind, batch] = start + lasts
                    left[stage].pop(0)

    def operations(self) -> tuple[Operations, float]:
        """Return the operations, and by which factor stragglers make a step longer, by the simulator itself."""
        seconds = self.seconds()
        operations, now = self.simulate(seconds)
        mean = seconds.mean(axis=(1, 2, 3), keepdims=True)
        _, ideal = self.simulate(np.broadcast_to(mean, seconds.shape))
        return operations, now / ideal
