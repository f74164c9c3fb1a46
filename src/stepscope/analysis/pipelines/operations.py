"""The operations of a pipelined training as arrays: one row per kind, stage and number, one column per step, replica.

The kinds are those of ByteDance's StragglerAnalysis; operations of other kinds are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.core.arrays import Floats, Integers, Mask


FORWARD, BACKWARD = "forward-compute", "backward-compute"
PASSES = (FORWARD, BACKWARD)
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
GATHER, SCATTER, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
GC, LAYERNORM, SHARED = "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPTIMIZER = "optimizer-clip-main-grad", "optimizer"
TALKS = frozenset((*TRANSFERS, GATHER, SCATTER, SEPARATE, LAYERNORM, SHARED, CLIP))
"""Kinds in which workers talk: ideally they take their median, as a disturbed network makes some very long."""
MOST_CELLS, MOST_KEYS, MOST_STAGES = 16_000_000, 300_000, 1024
"""Maximum size of a grid, as one that is mostly empty could need any memory; a real one has a cell per row."""
MOST_NUMBER = 1 << 20
"""Maximum number of a stage or operation."""
APART = 0.01
"""Seconds by which the clocks of two workers may differ without a correction."""
WHAT = "replay the training"
KINDS = (*PASSES, *TRANSFERS, GATHER, SCATTER, SEPARATE, GC, LAYERNORM, SHARED, CLIP, OPTIMIZER)


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
    """Seconds since any moment; only differences count."""
    seconds: Floats
    chunk: Integers | None = None
    """Part of the model that a pass computes, counted along the pipeline: virtual stages have several."""
    batch: Integers | None = None
    """Micro-batch of a pass."""
    part: Integers | None = None
    """Part of the model that an operation belongs to, counted within its stage."""
    rank: Integers | None = None
    """Number of the worker in the whole job."""

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]]) -> Operations:
        """Return those of a file's columns, named as in StragglerAnalysis."""
        step, replica, stage, sequence = (
            columns[name].astype(np.int64) for name in ("step", "dp_rank", "stage", "seq_id")
        )
        start, seconds = (columns[name].astype(np.float64) for name in ("start_ts", "duration"))
        more = (columns[name].astype(np.int64) if name in columns else None for name in ("gmc", "mb_id", "mc", "rank"))
        return cls(step, replica, stage, columns["optype"].astype(object), sequence, start, seconds, *more)


class OperationKey(NamedTuple):
    """What an operation is in every step and replica."""

    stage: int
    kind: str
    sequence: int


@dataclass(frozen=True)
class Grid:
    """Start and end of every operation, as arrays of operation, step and replica."""

    keys: list[OperationKey]
    start: Floats
    """Seconds since the first start of the step; NaN where the operation is not recorded."""
    end: Floats
    chunk: list[int]
    """Part of the model along the pipeline of each operation; -1 if it has none."""
    batch: list[int]
    part: list[int]
    steps: list[int]
    replicas: list[int]
    ranks: dict[tuple[int, int], int]
    """Number of the worker by stage and replica; empty if unknown."""

    @property
    def stages(self) -> list[int]:
        """Return the stages along the pipeline."""
        return sorted({key.stage for key in self.keys})

    @property
    def is_virtual(self) -> bool:
        """Return whether a stage has several parts of the model."""
        return max(self.chunk, default=-1) >= len(self.stages)

    @classmethod
    def of(cls, operations: Operations) -> Grid:
        """Arrange operations; of one that is recorded twice, the later row counts.

        Raises:
            StepscopeError: there are none that can be arranged, or they are of too many steps, replicas or stages.
        """
        number = {kind: at for at, kind in enumerate(KINDS)}
        codes = np.array([number.get(kind, -1) for kind in operations.kind.tolist()], np.int64)
        rows = np.flatnonzero(_is_usable(operations) & (codes >= 0))
        steps, step = np.unique(operations.step[rows], return_inverse=True)
        replicas, replica = np.unique(operations.replica[rows], return_inverse=True)
        stage, sequence = operations.stage[rows], operations.sequence[rows]
        many = int(sequence.max(initial=0)) + 1
        if max(many, stage.max(initial=0)) > MOST_NUMBER:
            raise StepscopeError(WHAT, f"stage or seq_id is beyond {MOST_NUMBER}", "check these columns")
        found, first, at = np.unique(
            (stage * len(KINDS) + codes[rows]) * many + sequence, return_index=True, return_inverse=True
        )
        shape = len(found), len(steps), len(replicas)
        _check_size(shape, len(np.unique(stage)))
        start, end = np.full(shape, np.nan), np.full(shape, np.nan)
        start[at, step, replica] = operations.start[rows]
        end[at, step, replica] = operations.start[rows] + operations.seconds[rows]
        keys = [OperationKey(int(stage[row]), KINDS[int(codes[rows[row]])], int(sequence[row])) for row in first]
        # Seconds since 1970 would lose the digits that count.
        begin = _ahead(keys, end)
        begin = begin + np.fmin.reduce(start - begin, axis=(0, 2))[:, None]
        chunk, batch, part = (
            _marks(each, rows[first]) for each in (operations.chunk, operations.batch, operations.part)
        )
        ranks = {}
        if operations.rank is not None:
            _, seen = np.unique(stage * len(replicas) + replica, return_index=True)
            ranks = {
                (int(stage[row]), int(replicas[replica[row]])): int(operations.rank[rows[row]]) for row in seen.tolist()
            }
        return cls(keys, start - begin, end - begin, chunk, batch, part, steps.tolist(), replicas.tolist(), ranks)


def _ahead(keys: Sequence[OperationKey], end: Floats) -> Floats:
    """Return how far the clock of each operation's worker is ahead of another, by operation and replica.

    All workers end the clipping of gradients at once, as each needs the gradients of all. Small differences may not be
    the clocks', and stay.
    """
    rows = [at for at, key in enumerate(keys) if (key.kind, key.sequence) == (CLIP, 0)]
    nothing = np.zeros((len(keys), 1, end.shape[2]))
    ends = end[rows][:, np.isfinite(end[rows]).any(axis=(0, 2))]
    if not ends.size:
        return nothing
    ahead = np.median(np.nan_to_num(ends - np.fmax.reduce(ends, axis=(0, 2))[:, None]), axis=1)
    if np.ptp(ahead) <= APART:
        return nothing
    of_stage = {keys[at].stage: each for at, each in zip(rows, ahead, strict=True)}
    return np.array([of_stage.get(key.stage, nothing[0, 0]) for key in keys])[:, None]


def _is_usable(operations: Operations) -> Mask:
    """Return which operations have a time and numbers."""
    timed = np.isfinite(operations.start) & np.isfinite(operations.seconds) & (operations.seconds >= 0)
    return np.asarray(timed & (operations.stage >= 0) & (operations.sequence >= 0))


def _check_size(shape: tuple[int, int, int], stages: int) -> None:
    """Refuse a grid that is empty or too large."""
    keys, steps, replicas = shape
    if not keys:
        raise StepscopeError(WHAT, "no operation is of a known kind and has a duration", "check optype and duration")
    if keys * steps * replicas > MOST_CELLS or keys > MOST_KEYS or stages > MOST_STAGES:
        text = f"it has {keys} operations in each of {steps} steps and {replicas} replicas of {stages} stages"
        raise StepscopeError(WHAT, text, "check step, dp_rank, stage and seq_id, or cut it to some steps")


def _marks(given: Integers | None, rows: Integers) -> list[int]:
    """Return a column's values in some rows; -1 for all without that column."""
    return [-1] * len(rows) if given is None else [int(one) for one in given[rows]]
