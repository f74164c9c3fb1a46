"""What if no worker were slower than the others? Replays the steps of a pipelined training with other durations.

A step is a schedule. Every stage computes its forward and backward passes in the observed order; a pass needs the same
micro-batch's pass of the previous stage (the next one for backward passes); after the last pass all replicas meet in
collectives. Replayed with the measured durations, a step takes as long as it took, without launch gaps; with the mean
of each operation everywhere, as long as it ideally would. The ratio is the slowdown by stragglers. Replaying with one
stage or replica made ideal shows its share. The method is that of Lin et al., "Understanding Stragglers in Large Model
Training Using What-if Analysis" (2025).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import WARNING, Finding
from stepscope.core.numbers import format_share, format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats, Integers


FORWARD, BACKWARD = "forward-compute", "backward-compute"
RECEIVES = {FORWARD: ("forward-recv", "forward-send"), BACKWARD: ("backward-recv", "backward-send")}
GATHER, SHARED = "params-all-gather", "embedding-grads-all-reduce"
TAIL = (
    *("gc", "layernorm-grads-all-reduce", SHARED, "grads-reduce-scatter", "separate-grads-all-reduce"),
    *("optimizer-clip-main-grad", "optimizer"),
)
"""What follows the passes of a step, in this order."""
OF_REPLICAS = frozenset((GATHER, "grads-reduce-scatter", "separate-grads-all-reduce"))
"""Collectives in which the same stage of all replicas meets."""
OF_STAGES = frozenset(("optimizer-clip-main-grad", SHARED))
"""Collectives in which stages meet: all, or those that share the embedding."""
COMPUTED = frozenset((FORWARD, BACKWARD, "optimizer", "gc"))
SLOW = 1.05
"""Slowdown from which stragglers are a finding."""
MOST_OF_IT, NEARLY = 0.5, 0.8
"""Share of the slowdown that a part must explain to be named; a single worker is named instead of its stage and replica
if it explains this share of what they explain."""
ALIKE = 0.5
"""Correlation of forward and backward passes above which long ones have more work."""
MOST_WORKERS = 16
"""Maximum workers that are replayed one by one."""


@dataclass(frozen=True)
class Operations:
    """The operations of a pipelined training, one per row."""

    step: Integers
    replica: Integers
    stage: Integers
    kind: NDArray[np.object_]
    sequence: Integers
    """Number of the operation among those of its kind in one step and stage."""
    start: Floats
    seconds: Floats


@dataclass(frozen=True)
class WhatIf:
    """How much faster the training would be without stragglers, and who they are."""

    slowdown: float
    """Replayed duration of a step divided by the ideal one: 1 means no straggler."""
    seconds: float
    """Mean duration of a step as replayed."""
    ideal_seconds: float
    stages: dict[int, float]
    """Share of the slowdown that disappears if this stage is ideal."""
    replicas: dict[int, float]
    """The same by replica."""
    workers: dict[tuple[int, int], float] = field(default_factory=dict)
    """The same by worker (a stage of a replica), for those that compute the most beyond the mean."""
    uneven: float = 0.0
    """Share that disappears if every micro-batch takes the mean of its worker: the cost of unequal work."""
    uneven_forward: float = 0.0
    """Share that disappears if only forward passes do: pauses of Python lengthen these, as it starts them."""
    collected: float = 0.0
    """Share that disappears if every garbage collection that is timed by itself takes its mean."""
    pass_correlation: float = 0.0
    """Correlation of the forward and backward passes of micro-batches: near 1 if long ones have more work."""

    def finding(self) -> Finding | None:
        """Return it as a finding; None if no worker is late."""
        if self.slowdown < SLOW:
            return None
        cause, facts, who, share = self._cause()
        text = f"stragglers make a step {format_value(self.slowdown - 1, 'ratio')} longer: "
        # Parts that hold each other up can explain more than all.
        explained = "all of it" if share >= 0.995 else f"{format_share(share)} of it"
        if cause == "work":
            text += f"micro-batches with unequal work explain {explained}"
            if self.pass_correlation > ALIKE:
                text += f"; long forward passes have long backward passes (r = {self.pass_correlation:.2f})"
        elif cause == "gc":
            text += f"pauses of Python on changing workers explain {explained}"
            if self.collected < MOST_OF_IT:
                text += (
                    f"; forward passes are long now and then, backward passes are not (r = {self.pass_correlation:.2f})"
                )
        elif cause:
            text += f"{who} explains {explained}"
        else:
            text += f"no worker, stage or replica explains half of it; {who} explains the most, {format_share(share)}"
        evidence = self.facts() | facts | ({"cause": cause} if cause else {})
        return Finding(
            *("straggler", text, WARNING, remedy("straggler", cause, who=who), evidence),
            gain_ratio=1 - 1 / self.slowdown,
            confidence=0.9 if cause else 0.6,
            expected_gain=f"step {self.seconds:.3f} → {self.ideal_seconds:.3f} s if every operation takes its mean",
        )

    def _cause(self) -> tuple[str, dict[str, Any], str, float]:
        """Return the smallest part that explains most of it: cause, evidence, its name, and its share."""
        stage = max(self.stages, key=lambda one: self.stages[one])
        last = "last " if stage == max(self.stages) else "first " if stage == min(self.stages) else ""
        replica = max(self.replicas, key=lambda one: self.replicas[one])
        by_stage = self.stages[stage] if len(self.stages) > 1 else 0.0  # a single one is the whole training
        by_replica = self.replicas[replica] if len(self.replicas) > 1 else 0.0
        of_stage = {"late_stage": stage}, f"the {last}pipeline stage {stage}", by_stage
        of_replica = {"late_replica": replica}, f"replica {replica}", by_replica
        if self.workers:
            worker = max(self.workers, key=lambda one: self.workers[one])
            share = self.workers[worker]
            if share >= max(MOST_OF_IT, NEARLY * by_stage, NEARLY * by_replica):
                named = {"late_stage": worker[0], "late_replica": worker[1]}
                return "worker", named, f"stage {worker[0]} of replica {worker[1]}", share
        if self.collected >= max(MOST_OF_IT, by_stage, by_replica):
            return "gc", {}, "garbage collection", self.collected
        if by_stage >= max(MOST_OF_IT, by_replica, self.uneven):
            return "stage", *of_stage
        if by_replica >= max(MOST_OF_IT, self.uneven):  # without stages, a replica is one worker
            return "worker" if len(self.stages) == 1 else "replica", *of_replica
        if self.uneven >= MOST_OF_IT:
            return self._uneven_cause()
        return "", *(of_stage if by_stage >= by_replica else of_replica)

    def _uneven_cause(self) -> tuple[str, dict[str, Any], str, float]:
        """Return why micro-batches differ: their work, or pauses of Python, which starts only the forward passes."""
        if self.pass_correlation < ALIKE and self.uneven_forward >= NEARLY * self.uneven:
            return "gc", {}, "pauses", self.uneven_forward
        return "work", {}, "the micro-batches", self.uneven

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "slowdown": self.slowdown,
            "step_seconds": self.seconds,
            "expected_step_seconds": self.ideal_seconds,
            "stages": {str(key): value for key, value in self.stages.items()},
            "replicas": {str(key): value for key, value in self.replicas.items()},
            "workers": {f"{stage}/{replica}": value for (stage, replica), value in self.workers.items()},
            "uneven_work": self.uneven,
            "uneven_forward": self.uneven_forward,
            "pass_correlation": self.pass_correlation,
            "formula": "slowdown = replayed step / step with the mean duration of every operation",
        }


def what_if(operations: Operations) -> WhatIf:
    """Replay a training as it was, ideally, and with each stage, replica and suspect worker made ideal."""
    table = _Table.of(operations)
    ideal = {key: np.broadcast_to(mean, table.shape) for key, mean in table.means().items()}

    now, best = table.replay(table.seconds), table.replay(ideal)
    lost = max(now - best, np.finfo(float).tiny)

    def without(stage: int | None, replica: int | None) -> float:
        """Return the share that goes away if the operations of a stage, of a replica, or of both are ideal."""
        mask = np.zeros(table.shape, bool)
        mask[:, slice(None) if replica is None else replica] = True
        mixed = {
            key: np.where(mask, ideal[key], value) if stage is None or key[0] == stage else value
            for key, value in table.seconds.items()
        }
        return (now - table.replay(mixed)) / lost

    stages = {one: without(one, None) for one in table.order}
    replicas = {name: without(None, at) for at, name in enumerate(table.replicas)}
    workers = {(one, table.replicas[at]): without(one, at) for one, at in table.suspects(ideal)}
    uneven, forward = ((now - table.replay(table.evened(kinds))) / lost for kinds in ((FORWARD, BACKWARD), (FORWARD,)))
    calm = {key: ideal[key] if key[1] == "gc" else value for key, value in table.seconds.items()}
    collected = (now - table.replay(calm)) / lost
    shares = uneven, forward, collected, table.pass_correlation()
    return WhatIf(now / best, now, best, stages, replicas, workers, *shares)


_Key = tuple[int, str, int]
"""Stage, kind and sequence of an operation."""


@dataclass(frozen=True)
class _Table:
    """Durations of every operation by step and replica, and the order in which each stage computes."""

    seconds: dict[_Key, Floats]
    order: dict[int, list[_Key]]
    replicas: list[int]
    shape: tuple[int, int]

    @classmethod
    def of(cls, operations: Operations) -> _Table:
        steps, step = np.unique(operations.step, return_inverse=True)
        replicas, replica = np.unique(operations.replica, return_inverse=True)
        shape = len(steps), len(replicas)
        starts: dict[_Key, Floats] = {}
        ends: dict[_Key, Floats] = {}
        keys = zip(operations.stage.tolist(), operations.kind.tolist(), operations.sequence.tolist(), strict=True)
        for row, key in enumerate(keys):
            if key not in starts:
                starts[key], ends[key] = np.full(shape, np.nan), np.full(shape, np.nan)
            starts[key][step[row], replica[row]] = operations.start[row]
            ends[key][step[row], replica[row]] = operations.start[row] + operations.seconds[row]
        begin = np.nanmin(list(starts.values()), axis=0)
        order: dict[int, list[_Key]] = {stage: [] for stage in sorted({key[0] for key in starts})}
        for key in sorted(starts, key=lambda key: float(np.nanmedian(starts[key] - begin))):
            if key[1] in (FORWARD, BACKWARD):
                order[key[0]].append(key)
        seconds = {key: _own(key, starts, ends) for key in starts}
        return cls(seconds, order, [int(one) for one in replicas], shape)

    def means(self) -> dict[_Key, float]:
        """Return the ideal duration of each operation: that of its kind and sequence over steps, replicas and stages.

        It is the mean for compute, and the median for transfers, which a disturbed network sometimes makes long.
        """
        found: dict[tuple[str, int], list[Floats]] = {}
        for (_, kind, sequence), value in self.seconds.items():
            found.setdefault((kind, sequence), []).append(value)
        mean = {
            key: float((np.nanmean if key[0] in COMPUTED else np.nanmedian)(np.stack(values)))
            for key, values in found.items()
        }
        return {key: mean[key[1], key[2]] for key in self.seconds}

    def suspects(self, ideal: dict[_Key, Floats]) -> list[tuple[int, int]]:
        """Return stage and replica index of the workers that compute the most beyond the mean."""
        if len(self.order) < 2 or self.shape[1] < 2:
            return []
        beyond = {stage: np.zeros(self.shape[1]) for stage in self.order}
        for key, value in self.seconds.items():
            if key[1] in COMPUTED:
                beyond[key[0]] = beyond[key[0]] + np.nansum(value - ideal[key], axis=0)
        every = [(stage, at) for stage in beyond for at in range(self.shape[1])]
        return sorted(every, key=lambda one: -float(beyond[one[0]][one[1]]))[:MOST_WORKERS]

    def evened(self, kinds: Sequence[str]) -> dict[_Key, Floats]:
        """Return durations with which passes of some kinds take the mean of their worker over all micro-batches."""
        found = dict(self.seconds)
        for stage, kind in itertools.product(self.order, kinds):
            keys = [key for key in self.seconds if key[:2] == (stage, kind)]
            if keys:
                mean = np.nanmean(np.stack([self.seconds[key] for key in keys]), axis=(0, 1))
                found |= {key: np.broadcast_to(mean, self.shape) for key in keys}
        return found

    def pass_correlation(self) -> float:
        """Return the correlation of forward and backward passes of the same micro-batch, relative to their stage."""
        pairs = []
        for stage in self.order:
            passes = [key for key in self.seconds if key[0] == stage and key[1] in (FORWARD, BACKWARD)]
            level = {kind: np.nanmean([self.seconds[key] for key in passes if key[1] == kind]) for _, kind, _ in passes}
            for _, kind, sequence in passes:
                back = stage, BACKWARD, sequence
                if kind == FORWARD and back in self.seconds:
                    both = self.seconds[stage, FORWARD, sequence] / level[FORWARD], self.seconds[back] / level[BACKWARD]
                    pairs.append(np.stack([each.ravel() for each in both]))
        table = np.concatenate(pairs, axis=1) if pairs else np.empty((2, 0))
        table = table[:, np.isfinite(table).all(axis=0)]
        if table.shape[1] < 3 or not table.std(axis=1).all():
            return 0.0
        return float(np.asarray(np.corrcoef(table))[0, 1])

    def replay(self, seconds: dict[_Key, Floats]) -> float:
        """Return the mean duration of a step with these durations."""
        done: dict[_Key, Floats] = {}
        clock = {
            stage: self._met(seconds.get((stage, GATHER, 0)), np.zeros(self.shape), GATHER) for stage in self.order
        }
        left = {stage: list(keys) for stage, keys in self.order.items()}
        while any(left.values()):
            moved = False
            for stage in self.order:
                while left[stage]:
                    ready = self._ready(left[stage][0], done, seconds)
                    if ready is None:
                        break
                    key = left[stage].pop(0)
                    clock[stage] = done[key] = np.maximum(clock[stage], ready) + np.nan_to_num(seconds[key])
                    moved = True
            if not moved:
                break  # a schedule with a hole: the rest of it is unknown
        for kind in TAIL:
            self._meet(kind, clock, seconds)
        return float(np.max(np.stack(list(clock.values())), axis=(0, 2)).mean())

    def _ready(self, key: _Key, done: dict[_Key, Floats], seconds: dict[_Key, Floats]) -> Floats | None:
        """Return when the input of a pass is there; None if that is unknown yet."""
        stage, kind, sequence = key
        before = stage - 1 if kind == FORWARD else stage + 1
        if before not in self.order or (before, kind, sequence) not in self.seconds:
            return np.zeros(self.shape)
        sent = done.get((before, kind, sequence))
        transfer = seconds.get((stage, RECEIVES[kind][0], sequence))
        return None if sent is None else sent + (0.0 if transfer is None else np.nan_to_num(transfer))

    def _met(self, seconds: Floats | None, clock: Floats, kind: str) -> Floats:
        if seconds is None:
            return clock
        if kind in OF_REPLICAS:
            clock = np.broadcast_to(clock.max(axis=1, keepdims=True), clock.shape)
        return np.asarray(clock + np.nan_to_num(seconds))

    def _meet(self, kind: str, clock: dict[int, Floats], seconds: dict[_Key, Floats]) -> None:
        """Let the stages do an operation after their passes; stages that meet in it begin with the last of them."""
        taking = [stage for stage in self.order if (stage, kind, 0) in self.seconds]
        if taking and kind in OF_STAGES:
            latest = np.max([clock[stage] for stage in taking], axis=0)
            clock.update(dict.fromkeys(taking, latest))
        for stage in taking:
            clock[stage] = self._met(seconds[stage, kind, 0], clock[stage], kind)


def _own(key: _Key, starts: dict[_Key, Floats], ends: dict[_Key, Floats]) -> Floats:
    """Return the duration of an operation itself; of a collective, from the time when the last participant has come."""
    stage, kind, sequence = key
    start, end = starts[key], ends[key]
    if kind in OF_REPLICAS:
        start = np.broadcast_to(np.nanmax(start, axis=1, keepdims=True), start.shape)
    elif kind in OF_STAGES:
        start = np.nanmax([other for name, other in starts.items() if name[1:] == (kind, sequence)], axis=0)
    for passes, (receive, send) in RECEIVES.items():
        if kind == receive:
            peer = starts.get((stage - 1 if passes == FORWARD else stage + 1, send, sequence))
            start = start if peer is None else np.fmax(start, peer)
    return np.asarray(np.maximum(0.0, end - start))
