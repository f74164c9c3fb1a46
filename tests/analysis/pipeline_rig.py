"""Pipelined trainings that never ran: a simulator of the (interleaved) 1F1B schedule, as in ByteDance's traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.pipelines.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Row = tuple[int, int, int, str, int, float, float, int, int]

FORWARD, BACKWARD = 0, 1
NAMES = ("forward", "backward")
TRANSFER, MEETING, OPTIMIZER = 0.001, 0.01, 0.02
BETWEEN = 1000.0
"""Seconds from the begin of a step to that of the next one."""


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
    link: tuple[int, int, float] | None = None
    """Receiving stage, replica, and seconds by which each of its forward transfers is longer."""
    chunks: int = 1
    """Parts of the model in each stage; with more than one, `batches` is a multiple of `stages`."""

    def seconds(self) -> Numbers:
        """Return the compute time by kind, step, replica, stage, part and micro-batch."""
        chance = np.random.default_rng(self.seed)
        shape = 2, self.steps, self.replicas, self.stages, self.chunks, self.batches
        found = np.array([0.05, 0.1]).reshape(2, 1, 1, 1, 1, 1) * chance.normal(1, self.noise, shape).clip(0.2)
        found *= np.exp(chance.normal(0, self.lengths, (1, self.steps, self.replicas, 1, 1, self.batches)))
        for (stage, replica), factor in self.slow.items():
            found[:, :, slice(None) if replica < 0 else replica, slice(None) if stage < 0 else stage] *= factor
        if self.pauses:
            found[FORWARD] += self.pauses * (chance.random(shape[1:]) < 0.1)
        return found

    def transfers(self) -> Numbers:
        """Return the time of each transfer by kind, step, replica, receiving stage, part and micro-batch."""
        found = np.full((2, self.steps, self.replicas, self.stages, self.chunks, self.batches), TRANSFER)
        if self.link is not None:
            stage, replica, more = self.link
            found[FORWARD, :, replica, stage] += more
        return found

    def order(self, stage: int) -> list[tuple[int, int, int]]:
        """Return kind, part and micro-batch of a stage's passes: some forward ones, then one of each in turn."""
        many = self.stages * self.chunks
        count = self.batches * self.chunks
        turns = []
        for at in range(count):
            part, batch = at % many // self.stages, at // many * self.stages + at % self.stages
            turns.append((part, batch) if self.chunks > 1 else (0, at))
        ahead = self.stages - stage - 1
        if self.chunks > 1:
            ahead = 2 * ahead + (self.chunks - 1) * self.stages
        ahead = min(ahead, count)
        forward = [(FORWARD, *turn) for turn in turns]
        backward = [(BACKWARD, self.chunks - 1 - part, batch) for part, batch in turns]
        found = forward[:ahead]
        for at in range(count - ahead):
            found += [forward[ahead + at], backward[at]]
        return found + backward[count - ahead :]

    def simulate(self, seconds: Numbers, transfers: Numbers) -> tuple[Operations, float]:
        """Return the operations, and the mean seconds of a step."""
        rows: list[Row] = []
        total = 0.0
        for step in range(self.steps):
            clock = np.zeros((self.replicas, self.stages))
            for replica in range(self.replicas):
                times = seconds[:, step, replica], transfers[:, step, replica]
                self._passes(step, replica, times, clock[replica], rows)
            for stage in range(self.stages):  # the same stage of all replicas meets
                end = clock[:, stage].max() + MEETING
                for replica in range(self.replicas):
                    start = clock[replica, stage]
                    at = BETWEEN * step + start
                    rows.append((step, replica, stage, "grads-reduce-scatter", 0, at, end - start, -1, -1))
                clock[:, stage] = end
            end = float(clock.max()) + MEETING
            for stage in range(self.stages):
                for replica in range(self.replicas):
                    at, until = BETWEEN * step + clock[replica, stage], BETWEEN * step + end
                    rows.append((step, replica, stage, "optimizer-clip-main-grad", 0, at, until - at, -1, -1))
                    rows.append((step, replica, stage, "optimizer", 0, until, OPTIMIZER, -1, -1))
            clock[:] = end
            total += float(clock.max()) + OPTIMIZER
        return Operations.of(self._columns(rows)), total / self.steps

    def _columns(self, rows: list[Row]) -> dict[str, NDArray[Any]]:
        """Return rows as the columns of a trace."""
        names = "step", "dp_rank", "stage", "optype", "seq_id", "start_ts", "duration", "gmc", "mb_id"
        columns = {name: np.array(each) for name, each in zip(names, zip(*rows, strict=True), strict=True)}
        columns["optype"] = columns["optype"].astype(object)
        columns["rank"] = columns["stage"] * self.replicas + columns["dp_rank"]
        return columns

    def _passes(self, step: int, replica: int, times: tuple[Numbers, Numbers], clock: Numbers, rows: list[Row]) -> None:
        seconds, transfers = times
        done: dict[tuple[int, int, int], float] = {}
        free: dict[tuple[int, int], float] = {}
        left = {stage: self.order(stage) for stage in range(self.stages)}
        count: dict[tuple[int, str], int] = {}

        def note(stage: int, name: str, start: float, lasts: float, chunk: int = -1, batch: int = -1) -> None:
            number = count[stage, name] = count.get((stage, name), -1) + 1
            rows.append((step, replica, stage, name, number, BETWEEN * step + start, lasts, chunk, batch))

        while any(left.values()):
            for stage in range(self.stages):
                while left[stage]:
                    kind, part, batch = left[stage][0]
                    chunk = part * self.stages + stage
                    before = chunk - 1 if kind == FORWARD else chunk + 1
                    ready = 0.0
                    if 0 <= before < self.stages * self.chunks:
                        sent = done.get((before, kind, batch))
                        if sent is None:
                            break
                        begin = free.get((stage, kind), 0.0)  # it receives while it computes the other kind
                        ready = max(sent, begin) + transfers[kind, stage, part, batch]
                        note(stage, f"{NAMES[kind]}-recv", begin, ready - begin)
                        note(before % self.stages, f"{NAMES[kind]}-send", sent, ready - sent)
                    start = max(float(clock[stage]), ready)
                    lasts = float(seconds[kind, stage, part, batch])
                    note(stage, f"{NAMES[kind]}-compute", start, lasts, chunk, batch)
                    clock[stage] = done[chunk, kind, batch] = free[stage, kind] = start + lasts
                    left[stage].pop(0)

    def operations(self) -> tuple[Operations, float]:
        """Return the operations, and by which factor stragglers make a step longer, by the simulator itself."""
        seconds, transfers = self.seconds(), self.transfers()
        operations, now = self.simulate(seconds, transfers)
        mean = np.broadcast_to(seconds.mean(axis=(1, 2, 3, 4, 5), keepdims=True), seconds.shape)
        usual = np.empty_like(transfers)
        for kind in (FORWARD, BACKWARD):  # the first part of the model receives nothing, or the last one
            there = np.ones((self.stages, self.chunks), bool)
            there[(0, 0) if kind == FORWARD else (-1, -1)] = False
            usual[kind] = np.median(transfers[kind][:, :, there]) if there.any() else 0.0
        _, ideal = self.simulate(mean, usual)
        return operations, now / ideal
