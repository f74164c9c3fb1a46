"""What each operation of a pipelined training needs before it can begin, and which operations end together.

A stage computes its passes in the observed order. A pass needs the same micro-batch's pass of the part of the model
before it (after it for backward passes), through a pair of transfers: they begin when both ends are ready. A stage
receives for its next pass once the pass of this kind before has ended. Around the passes come the collectives in which
replicas or stages meet. These are the dependencies of Lin et al., "Understanding Stragglers in Large Model Training
Using What-if Analysis" (2025); where a trace lacks operations, what is left of them holds.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepscope.analysis.pipelines.operations import (
    BACKWARD,
    CLIP,
    FORWARD,
    GATHER,
    GC,
    LAYERNORM,
    OPTIMIZER,
    PASSES,
    SCATTER,
    SEPARATE,
    SHARED,
    TRANSFERS,
    OperationKey,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.analysis.pipelines.operations import Grid
    from stepscope.core.arrays import Floats


CLOCK = 5e-5
"""Seconds by which two times of one worker may differ and still be the same."""
AHEAD = {FORWARD: -1, BACKWARD: 1}
"""Where the part of the model is whose pass comes before a pass."""


class Meeting(NamedTuple):
    """Operations that end together: each its own time after the last of them has begun. One alone just lasts."""

    members: tuple[int, ...]
    waits: bool = False
    """Whether they wait for each other; one alone may wait for its replicas."""
    replicas: bool = False
    """Whether the replicas meet in it, too."""


@dataclass(frozen=True)
class PipelineSchedule:
    """The meetings of a step in an order in which each follows all it needs, and what each operation needs."""

    meetings: list[Meeting]
    needs: list[tuple[int, ...]]
    batches: list[list[int]]
    """Transfers that a stage begins and ends together, and waits for; empty if they are replayed one by one."""


def schedule_of(grid: Grid, *, batched: bool = False) -> PipelineSchedule:
    """Return the schedule of a grid's operations; `batched` keeps the transfers of a batch together."""
    links = _Links(grid)
    for stage in grid.stages:
        links.stage(stage)
    links.inputs()
    batches = [each for stage in grid.stages for each in links.batches(stage)] if batched else []
    meetings = links.meetings()
    needs = [tuple(each) for each in links.needs]
    return PipelineSchedule(_ordered(meetings, links.needs, links.when), needs, batches)


@dataclass
class _Links:
    """The dependencies of a grid, as they are found."""

    grid: Grid
    at: dict[OperationKey, int] = field(init=False)
    when: list[float] = field(init=False)
    """Usual start of each operation in its step."""
    needs: list[set[int]] = field(init=False)
    pairs: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Transfers by kind, and by part of the model and micro-batch of the pass that they belong to."""

    def __post_init__(self) -> None:
        grid = self.grid
        self.at = {key: at for at, key in enumerate(grid.keys)}
        self.when = _usual(grid.start)
        self.until = _usual(grid.end)
        self.needs = [set() for _ in grid.keys]
        self.many = len(grid.stages)
        passes = [at for at, key in enumerate(grid.keys) if key.kind in PASSES]
        self.last_chunk = max((self.chunk(at) for at in passes), default=0)
        self.by_kind: dict[tuple[int, str], list[int]] = {}
        for at, key in enumerate(grid.keys):
            self.by_kind.setdefault((key.stage, key.kind), []).append(at)

    def of(self, stage: int, *kinds: str) -> list[int]:
        """Return a stage's operations of some kinds in order of their start."""
        found = [at for kind in kinds for at in self.by_kind.get((stage, kind), ())]
        return sorted(found, key=lambda at: (self.when[at], self.grid.keys[at].sequence, self.grid.keys[at].kind))

    def chain(self, operations: Iterable[int]) -> None:
        """Let each of these operations need the one before it."""
        for before, after in itertools.pairwise(operations):
            self.needs[after].add(before)

    def chunk(self, at: int) -> int:
        """Return the part of the model that a pass computes, along the pipeline."""
        return self.grid.chunk[at] if self.grid.chunk[at] >= 0 else self.grid.keys[at].stage

    def batch(self, at: int) -> int:
        """Return the micro-batch of a pass."""
        return self.grid.batch[at] if self.grid.batch[at] >= 0 else self.grid.keys[at].sequence

    def stage(self, stage: int) -> None:
        """Find the dependencies within a stage."""
        passes = self.of(stage, *PASSES)
        self.chain(passes)
        for kind in TRANSFERS:
            self.chain(self.of(stage, kind))
            self._transfers(stage, kind)
        self._first_backward(stage, passes)
        self.chain(self.of(stage, GATHER, SCATTER))
        self._gathers(stage)
        self._tail(stage, passes)

    def _transfers(self, stage: int, kind: str) -> None:
        """Match the transfers of a stage with its passes, in their order."""
        name, _, way = kind.partition("-")
        every, passes = self.of(stage, kind), self.of(stage, f"{name}-compute")
        passes.sort(key=lambda at: self.grid.keys[at].sequence)
        if not passes:
            return
        last, first = max(self.when[at] for at in passes), min(self.until[at] for at in passes)
        if way == "recv":
            taken = [at for at in every if self.when[at] <= last + CLOCK]
        else:  # a profiler may record transfers that never began
            taken = [at for at in every if self.until[at] >= first - CLOCK]
        for at, one in zip(taken, self._partners(passes, len(taken), kind), strict=False):
            if way == "recv":
                self.needs[one].add(at)
                before = self.at.get(OperationKey(stage, f"{name}-compute", self.grid.keys[one].sequence - 1))
                if before is not None:
                    self.needs[at].add(before)
            else:
                self.needs[at].add(one)
            self.pairs[kind, self.chunk(one), self.batch(one)] = at

    def _partners(self, passes: list[int], count: int, kind: str) -> list[int]:
        """Return the passes that so many transfers belong to: of all, or of those that have a peer."""
        name, _, way = kind.partition("-")
        if count == len(passes):
            return passes
        step = AHEAD[f"{name}-compute"] * (1 if way == "recv" else -1)
        paired = [at for at in passes if 0 <= self.chunk(at) + step <= self.last_chunk]
        if count == len(paired):
            return paired
        return passes[1:] if way == "recv" and count + 1 == len(passes) else passes

    def _first_backward(self, stage: int, passes: Sequence[int]) -> None:
        """Let the first transfers of backward passes begin before the last forward pass of the warm-up."""
        kinds = [self.grid.keys[at].kind for at in passes]
        first = kinds.index(BACKWARD) if BACKWARD in kinds else 0
        if first >= 2:
            for kind in ("backward-recv", "backward-send"):
                at = self.at.get(OperationKey(stage, kind, 0))
                if at is not None:
                    self.needs[at].add(passes[first - 2])

    def _gathers(self, stage: int) -> None:
        """Let the first pass of a part of the model need its parameters."""
        firsts: dict[int, int] = {}
        for at in self.of(stage, FORWARD):
            firsts.setdefault(self._part(at), at)
        latest = {max(0, self.grid.part[at]): at for at in self.of(stage, GATHER)}
        for part, at in latest.items():
            if part in firsts:
                self.needs[firsts[part]].add(at)

    def _part(self, at: int) -> int:
        part = self.grid.part[at]
        return part if part >= 0 else self.chunk(at) // max(1, self.many)

    def _tail(self, stage: int, passes: Sequence[int]) -> None:
        """Let the collectives follow the passes, and the optimizer follow them."""
        scatters = self.of(stage, SCATTER)
        separate = self.of(stage, SEPARATE)
        last = max(passes, key=lambda at: self.until[at], default=None)
        gc = self.of(stage, GC)
        self.chain([*([last] if last is not None else []), *gc])
        begin = gc[-1:] or ([last] if last is not None else [])
        before = [*self.of(stage, LAYERNORM), *self.of(stage, SHARED)]
        after = [*self.of(stage, CLIP), *self.of(stage, OPTIMIZER)]
        if separate:  # gradients are reduced while the passes go on
            self.chain([*begin, *before, *separate, *after])
            begun = [*before, *separate, *after][:1]
            for at in begun:
                self.needs[at].update(scatters[-1:])
            lasts = {self._part(at): at for at in self.of(stage, BACKWARD)}
            for part, at in [(max(0, self.grid.part[at]), at) for at in scatters]:  # the others follow the first one
                if part in lasts:
                    self.needs[at].add(lasts.pop(part))
        else:
            self.chain([*begin, *before, *scatters, *after])

    def inputs(self) -> None:
        """Let every pass need the pass before it, of the same micro-batch, unless transfers lead from this to it."""
        places = {
            (key.kind, self.chunk(at), self.batch(at)): at
            for at, key in enumerate(self.grid.keys)
            if key.kind in PASSES
        }
        for (kind, chunk, batch), at in places.items():
            name, source = kind.partition("-")[0], chunk + AHEAD[kind]
            before = places.get((kind, source, batch))
            is_led = (f"{name}-send", source, batch) in self.pairs and (f"{name}-recv", chunk, batch) in self.pairs
            if before is not None and not is_led:
                self.needs[at].add(before)

    def batches(self, stage: int) -> list[list[int]]:
        """Return the batches of transfers; each follows the pass before it, and the next pass follows all of it."""
        batches: list[list[int]] = []
        for at in self.of(stage, *TRANSFERS):
            with_last = batches and all(
                abs(times[at] - times[batches[-1][0]]) <= CLOCK for times in (self.when, self.until)
            )
            if not with_last:
                batches.append([])
            batches[-1].append(at)
        passes = self.of(stage, *PASSES)
        begins, ends = [self.when[at] for at in passes], [self.until[at] for at in passes]
        for batch in (batches := [each for each in batches if len(each) > 1]):
            before = bisect_right(ends, self.when[batch[0]] + CLOCK)
            after = bisect_left(begins, self.until[batch[0]] - CLOCK)
            for at in batch:
                self.needs[at].update(passes[before - 1 : before])
            for one in passes[after : after + 1]:
                self.needs[one].update(batch)
        return batches

    def meetings(self) -> list[Meeting]:
        """Return what meets in what; every other operation is alone."""
        found = []
        for (kind, chunk, batch), at in self.pairs.items():
            name, _, way = kind.partition("-")
            peer = self.pairs.get((f"{name}-recv", chunk - AHEAD[f"{name}-compute"], batch)) if way == "send" else None
            if peer is not None:
                found.append(Meeting((at, peer), waits=True))
        by_kind: dict[str, list[int]] = {}
        for at, key in enumerate(self.grid.keys):
            by_kind.setdefault(key.kind, []).append(at)
        for kind, across in ((SHARED, False), (CLIP, True)):
            if by_kind.get(kind):
                found.append(Meeting(tuple(by_kind[kind]), waits=True, replicas=across))
        for kind in (GATHER, SCATTER, SEPARATE):
            found += [Meeting((at,), waits=True, replicas=True) for at in by_kind.get(kind, ())]
        taken = {at for each in found for at in each.members}
        return found + [Meeting((at,)) for at in range(len(self.grid.keys)) if at not in taken]


def _usual(times: Floats) -> list[float]:
    """Return the median of each row; infinite if it has no value."""
    if np.isfinite(times).all():
        return [float(one) for one in np.median(times, axis=(1, 2))] if times.size else []
    found: list[float] = []
    for row in times:
        known = row[np.isfinite(row)]
        found.append(float(np.median(known)) if len(known) else float("inf"))
    return found


def _ordered(meetings: Sequence[Meeting], needs: Sequence[set[int]], when: Sequence[float]) -> list[Meeting]:
    """Return meetings so that each follows what it needs; in a circle, the one that began first goes first."""
    home = {at: number for number, each in enumerate(meetings) for at in each.members}
    wanted = [_wanted(number, each, needs, home) for number, each in enumerate(meetings)]
    followers: list[list[int]] = [[] for _ in meetings]
    for number, others in enumerate(wanted):
        for before in others:
            followers[before].append(number)
    begun = sorted(range(len(meetings)), key=lambda number: max(when[at] for at in meetings[number].members))
    found: list[int] = []
    done = [False] * len(meetings)
    for first in itertools.chain((number for number in range(len(meetings)) if not wanted[number]), begun):
        ready = [first]
        while ready:
            number = ready.pop()
            if not done[number]:
                done[number] = True
                found.append(number)
                for after in followers[number]:
                    wanted[after].discard(number)
                    ready += [after] if not wanted[after] else []
    return [meetings[number] for number in found]


def _wanted(number: int, meeting: Meeting, needs: Sequence[set[int]], home: dict[int, int]) -> set[int]:
    """Return the other meetings that a meeting needs."""
    return {home[before] for at in meeting.members for before in needs[at]} - {number}
