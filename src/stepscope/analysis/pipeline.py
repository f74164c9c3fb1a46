"""What if no worker were slower than the others: replay the steps of a pipelined training with other durations.

A step is a schedule: every stage computes its forward and backward passes in the order in which it was seen, a pass
needs the same micro-batch's pass of the stage before it (behind it, on the way back), and after the last one all
replicas meet in collectives. Replayed with the durations that were measured it takes as long as it took, without the
gaps in which nothing was launched; with the mean of each operation everywhere, as long as it ideally would. The ratio
is the slowdown by stragglers, and replaying with one stage or replica made ideal says whose fault it is.
The method is that of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import WARNING, Finding
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

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
OF_STAGES = frozenset(("optimizer-clip-main-grad",))
"""Collectives in which all stages meet."""
COMPUTED = frozenset((FORWARD, BACKWARD, "optimizer", "gc"))
SLOW = 1.05
"""Slowdown from which on stragglers are a finding."""


@dataclass(frozen=True)
class Operations:
    """The operations of a pipelined training, one a row: which step, replica and stage, what, when and how long."""

    step: NDArray[np.int64]
    replica: NDArray[np.int64]
    stage: NDArray[np.int64]
    kind: NDArray[np.object_]
    sequence: NDArray[np.int64]
    """Number of the operation among those of its kind in one step and stage."""
    start: Numbers
    seconds: Numbers


@dataclass(frozen=True)
class WhatIf:
    """How much faster the training would be without stragglers, and by whom it is held up."""

    slowdown: float
    """Replayed duration of a step by the ideal one: 1 means no straggler."""
    seconds: float
    """Mean duration of a step as replayed."""
    ideal_seconds: float
    stages: dict[int, float]
    """Share of the slowdown that goes away if this stage is made ideal."""
    replicas: dict[int, float]
    """The same by replica."""

    def finding(self) -> Finding | None:
        """Return it as a finding; None if nobody is late."""
        if self.slowdown < SLOW:
            return None
        stage = max(self.stages, key=lambda one: self.stages[one])
        last = stage == max(self.stages)
        what = f"the {'last ' if last else ''}pipeline stage {stage} explains {self.stages[stage]:.0%} of it"
        text = f"stragglers slow the training down {self.slowdown:.3f} times: {what}"
        return Finding(
            "straggler",
            text,
            WARNING,
            remedy("straggler", "stage" if last else "", who=f"the ranks of stage {stage}"),
            self.facts() | {"cause": "stage", "late_stage": stage},
            gain_ratio=1 - 1 / self.slowdown,
            confidence=0.9,
            expected_gain=f"step {self.seconds:.3f} → {self.ideal_seconds:.3f} s if all stages take their mean",
        )

    def facts(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "slowdown": self.slowdown,
            "step_seconds": self.seconds,
            "expected_step_seconds": self.ideal_seconds,
            "stages": {str(key): value for key, value in self.stages.items()},
            "replicas": {str(key): value for key, value in self.replicas.items()},
            "formula": "slowdown = replayed step / step with the mean duration of every operation",
        }


def what_if(operations: Operations) -> WhatIf:
    """Replay a training as it was, ideally, and with each stage and replica made ideal."""
    table = _Table.of(operations)
    ideal = {key: np.broadcast_to(mean, table.shape) for key, mean in table.means().items()}

    now, best = table.replay(table.seconds), table.replay(ideal)
    lost = max(now - best, np.finfo(float).tiny)
    stages, replicas = {}, {}
    for one in table.stages:
        mixed = {key: ideal[key] if key[0] == one else value for key, value in table.seconds.items()}
        stages[one] = (now - table.replay(mixed)) / lost
    for one in range(table.shape[1]):
        mask = np.zeros(table.shape, bool)
        mask[:, one] = True
        mixed = {key: np.where(mask, ideal[key], value) for key, value in table.seconds.items()}
        replicas[one] = (now - table.replay(mixed)) / lost
    return WhatIf(now / best, now, best, stages, replicas)


_Key = tuple[int, str, int]
"""Stage, kind and sequence of an operation."""


@dataclass(frozen=True)
class _Table:
    """Durations of every operation over steps and replicas, and the order in which each stage computes."""

    seconds: dict[_Key, Numbers]
    order: dict[int, list[_Key]]
    shape: tuple[int, int]

    @property
    def stages(self) -> list[int]:
        return sorted(self.order)

    @classmethod
    def of(cls, operations: Operations) -> _Table:
        steps, step = np.unique(operations.step, return_inverse=True)
        replicas, replica = np.unique(operations.replica, return_inverse=True)
        shape = len(steps), len(replicas)
        starts: dict[_Key, Numbers] = {}
        ends: dict[_Key, Numbers] = {}
        rows: dict[_Key, list[int]] = {}
        for row in range(len(operations.step)):
            key = int(operations.stage[row]), str(operations.kind[row]), int(operations.sequence[row])
            rows.setdefault(key, []).append(row)
        for key, some in rows.items():
            starts[key], ends[key] = (np.full(shape, np.nan) for _ in range(2))
            at = step[some], replica[some]
            starts[key][at] = operations.start[some]
            ends[key][at] = (operations.start + operations.seconds)[some]
        seconds = {key: _own(key, starts, ends) for key in starts}
        order = {
            stage: sorted(
                (key for key in starts if key[0] == stage and key[1] in (FORWARD, BACKWARD)),
                key=lambda key: float(np.nanmedian(starts[key] - np.nanmin(list(starts.values()), axis=0))),
            )
            for stage in sorted({key[0] for key in starts})
        }
        return cls(seconds, order, shape)

    def means(self) -> dict[_Key, float]:
        """Return for each operation what its kind and sequence take over steps, replicas and stages.

        The mean for what is computed; for a transfer, which a disturbed network makes long now and then, the median.
        """
        found: dict[tuple[str, int], list[Numbers]] = {}
        for (_, kind, sequence), value in self.seconds.items():
            found.setdefault((kind, sequence), []).append(value)
        mean = {
            key: float((np.nanmean if key[0] in COMPUTED else np.nanmedian)(np.stack(values)))
            for key, values in found.items()
        }
        return {key: mean[key[1], key[2]] for key in self.seconds}

    def replay(self, seconds: dict[_Key, Numbers]) -> float:
        """Return the mean duration of a step with these durations."""
        done: dict[_Key, Numbers] = {}
        clock = {
            stage: self._met(seconds.get((stage, GATHER, 0)), np.zeros(self.shape), GATHER) for stage in self.stages
        }
        left = {stage: list(keys) for stage, keys in self.order.items()}
        while any(left.values()):
            moved = False
            for stage in self.stages:
                while left[stage]:
                    ready = self._ready(left[stage][0], done, seconds)
                    if ready is None:
                        break
                    key = left[stage].pop(0)
                    clock[stage] = done[key] = np.maximum(clock[stage], ready) + np.nan_to_num(seconds[key])
                    moved = True
            if not moved:
                break  # a schedule with a hole: the rest of it is not known
        for kind in TAIL:
            self._meet(kind, clock, seconds)
        return float(np.max(np.stack(list(clock.values())), axis=(0, 2)).mean())

    def _ready(self, key: _Key, done: dict[_Key, Numbers], seconds: dict[_Key, Numbers]) -> Numbers | None:
        """Return when the input of a pass is there; None if that is not known yet."""
        stage, kind, sequence = key
        before = stage - 1 if kind == FORWARD else stage + 1
        if before not in self.order or (before, kind, sequence) not in self.seconds:
            return np.zeros(self.shape)
        sent = done.get((before, kind, sequence))
        transfer = seconds.get((stage, RECEIVES[kind][0], sequence))
        return None if sent is None else sent + (0.0 if transfer is None else np.nan_to_num(transfer))

    def _met(self, seconds: Numbers | None, clock: Numbers, kind: str) -> Numbers:
        if seconds is None:
            return clock
        if kind in OF_REPLICAS:
            clock = np.broadcast_to(clock.max(axis=1, keepdims=True), clock.shape)
        return np.asarray(clock + np.nan_to_num(seconds))

    def _meet(self, kind: str, clock: dict[int, Numbers], seconds: dict[_Key, Numbers]) -> None:
        """Let the stages do an operation after their passes; those that meet in it begin with the last of them."""
        taking = [stage for stage in self.stages if (stage, kind, 0) in self.seconds]
        if kind in OF_STAGES or kind == SHARED:
            latest = np.max(np.stack([clock[stage] for stage in taking]), axis=0) if taking else None
            for stage in taking:
                clock[stage] = clock[stage] if latest is None else latest
        for stage in taking:
            clock[stage] = self._met(seconds[stage, kind, 0], clock[stage], kind)


def _own(key: _Key, starts: dict[_Key, Numbers], ends: dict[_Key, Numbers]) -> Numbers:
    """Return what an operation takes itself: of one in which several meet, from the moment when the last has come."""
    stage, kind, sequence = key
    start, end = starts[key], ends[key]
    if kind in OF_REPLICAS:
        start = np.broadcast_to(np.nanmax(start, axis=1, keepdims=True), start.shape)
    elif kind in OF_STAGES or kind == SHARED:
        start = _latest([other for name, other in starts.items() if name[1:] == (kind, sequence)])
    for passes, (receive, send) in RECEIVES.items():
        if kind == receive:
            peer = starts.get((stage - 1 if passes == FORWARD else stage + 1, send, sequence))
            start = start if peer is None else np.fmax(start, peer)
    return np.asarray(np.maximum(0.0, end - start))


def _latest(starts: Sequence[Numbers]) -> Numbers:
    return np.asarray(np.nanmax(np.stack(starts), axis=0))
