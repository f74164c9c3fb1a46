"""What makes the passes of a pipelined training longer or shorter: their worker, their micro-batch's work, or chance.

A micro-batch with long sequences takes longer in all stages, forward and backward, so what its passes have in common is
its work. What a worker's passes have in common is its speed. The rest is chance, and pauses of Python: these lengthen
single forward passes, which Python starts, and not the backward passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.pipelines.operations import BACKWARD, FORWARD, PASSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.analysis.pipelines.operations import Grid
    from stepscope.core.arrays import Floats, Integers, Mask


SURE = 4.0
"""A replica or worker is slower than others by more than this many standard errors, or by chance."""
LATE, AS_LATE = 0.02, 0.25
"""A worker is late by this share of its passes at least, and by this share of what the latest is."""
BASE = 0.25
"""Quantile of the replicas that the others are compared with: many may be slow."""
TINY = 1e-9
"""Seconds; a pass takes longer."""


@dataclass(frozen=True)
class PassTimes:
    """The durations of all passes in seconds, taken apart. Axes: kind and part of the model, batch, step, replica."""

    kinds: list[str]
    stages: list[int]
    """Of each kind and part."""
    chunks: list[int]
    places: Integers
    """Number of the operation by kind and part, and batch; -1 if there is none."""
    seconds: Floats
    work: Floats
    """Factor of each micro-batch, with axes batch, step and replica; their mean is 1 in each replica."""
    rest: Floats
    """Logarithm of what neither worker nor work explains."""
    offset: Floats
    """Logarithm of how much longer all passes of each replica take than usual."""
    is_slow: Mask
    """Whether that is more than the chance of a few micro-batches."""

    @classmethod
    def of(cls, grid: Grid, seconds: Floats) -> PassTimes | None:
        """Take the passes of a grid apart; None if there are none."""
        found: dict[tuple[str, int, int], dict[int, int]] = {}
        for at, key in enumerate(grid.keys):
            if key.kind in PASSES:
                chunk = grid.chunk[at] if grid.chunk[at] >= 0 else key.stage
                batch = grid.batch[at] if grid.batch[at] >= 0 else key.sequence
                found.setdefault((key.kind, key.stage, chunk), {})[batch] = at
        batches = sorted({batch for each in found.values() for batch in each})
        if not batches:
            return None
        places = np.array([[each.get(batch, -1) for batch in batches] for each in found.values()])
        values = np.where((places >= 0)[:, :, None, None], seconds[places], np.nan)
        values = np.where(np.isfinite(values), np.maximum(values, TINY), np.nan)
        logs = np.log(values)
        work = np.exp(np.nan_to_num(_shared(logs - _middle(logs))))
        work = work / work.mean(axis=(0, 1))
        rest = logs - np.log(work)
        kinds, stages, chunks = [one for one, _, _ in found], [one for _, one, _ in found], [one for _, _, one in found]
        level = np.log(_mean(values, (1, 2)))
        offset = np.nan_to_num(_of_replicas(level - np.nanmedian(level, axis=1, keepdims=True), kinds, stages))
        error = float(work.std(axis=(0, 1)).mean()) / np.sqrt(work.shape[0] * work.shape[1])
        is_slow = np.abs(offset) > max(SURE * error, LATE)
        return cls(kinds, stages, chunks, places, values, work, rest - _middle(rest), offset, is_slow)

    def evened(self, seconds: Floats) -> Floats:
        """Return the durations of all operations if every micro-batch had the same work."""
        kept = np.asarray(np.where(self.is_slow, 1.0, np.exp(-self.offset)))
        return self._put(seconds, self.seconds / self.work * kept, PASSES)

    def levelled(self, seconds: Floats) -> Floats:
        """Return the durations of all operations if every worker computed as long on average."""
        found = np.array(seconds)
        level = _mean(self.seconds, (1, 2))
        for at, kind in enumerate(self.kinds):
            there = self.places[at][self.places[at] >= 0]
            usual = np.nanmean(level[[one == kind for one in self.kinds]])
            found[there] *= np.nan_to_num(usual / level[at], nan=1.0)
        return found

    def calmed(self, seconds: Floats, kinds: Sequence[str]) -> Floats:
        """Return the durations of all operations if passes of some kinds took what their worker and work explain."""
        return self._put(seconds, self.seconds / np.exp(self.rest), kinds)

    def _put(self, seconds: Floats, changed: Floats, kinds: Sequence[str]) -> Floats:
        """Return durations with passes of some kinds changed, and their mean kept."""
        found = np.array(seconds)
        for at, kind in enumerate(self.kinds):
            if kind in kinds:
                there = self.places[at] >= 0
                scale = np.nanmean(self.seconds[at]) / np.nanmean(changed[at])
                values = changed[at][there] * scale
                found[self.places[at][there]] = np.where(np.isfinite(values), values, found[self.places[at][there]])
        return found

    def slow_stages(self) -> frozenset[int]:
        """Return the stages whose passes take longer than those of other stages, in most replicas and micro-batches."""
        usual = np.nanmedian(np.nanmedian(self.seconds, axis=(1, 2)), axis=1)
        total = dict.fromkeys(self.stages, 0.0)
        for stage, seconds in zip(self.stages, usual, strict=True):
            total[stage] += float(np.nan_to_num(seconds))
        mean = sum(total.values()) / len(total)
        return frozenset(stage for stage, seconds in total.items() if seconds > (1 + LATE) * mean)

    def late(self) -> list[tuple[int, int]]:
        """Return stage and index of the replica of workers that compute longer than their peers, the latest first."""
        if self.seconds.shape[3] < 2:
            return []
        mean = _mean(self.seconds / self.work, (1, 2))
        if len(set(self.stages)) > 1:  # what all stages of a replica share by chance is its work
            mean = mean * np.where(self.is_slow, 1.0, np.exp(-self.offset))
        base = np.nanquantile(mean, BASE, axis=1, keepdims=True, method="lower")
        noise = self.rest if len(set(self.stages)) > 1 else self.rest + np.log(self.work)
        error = float(np.nanstd(noise)) / np.sqrt(max(1, noise.shape[1] * noise.shape[2]))
        total: dict[int, Floats] = {}
        whole: dict[int, float] = {}
        for at, stage in enumerate(self.stages):
            total[stage] = total.get(stage, np.zeros(mean.shape[1])) + np.nan_to_num(mean[at] - base[at])
            whole[stage] = whole.get(stage, 0.0) + float(base[at, 0])
        beyond = {
            (stage, replica): float(seconds)
            for stage, each in total.items()
            for replica, seconds in enumerate(each)
            if seconds > max(LATE, SURE * error) * whole[stage]
        }
        most = max(beyond.values(), default=0.0)
        return sorted((one for one in beyond if beyond[one] >= AS_LATE * most), key=lambda one: -beyond[one])

    def correlation(self) -> float:
        """Return the correlation of forward and backward passes of the same part, micro-batch, step and replica.

        It is that of their times or of their ranks, whichever is larger: pauses lengthen few forward passes, by much.
        """
        away = self.rest + np.log(self.work)
        away = away - _middle(away)
        rows = {(kind, chunk): at for at, (kind, chunk) in enumerate(zip(self.kinds, self.chunks, strict=True))}
        pairs = [
            np.stack([away[at].ravel(), away[rows[BACKWARD, chunk]].ravel()])
            for (kind, chunk), at in rows.items()
            if kind == FORWARD and (BACKWARD, chunk) in rows
        ]
        table = np.concatenate(pairs, axis=1) if pairs else np.empty((2, 0))
        table = table[:, np.isfinite(table).all(axis=0)]
        if table.shape[1] < 3 or not table.std(axis=1).all():
            return 0.0
        ranks = table.argsort(axis=1).argsort(axis=1)
        return max(float(np.asarray(np.corrcoef(each))[0, 1]) for each in (table, ranks))


def _mean(values: Floats, axis: tuple[int, ...]) -> Floats:
    """Return means without what is unknown."""
    return np.asarray(np.nanmean(values, axis=axis))


def _middle(values: Floats) -> Floats:
    """Return the median over batches and steps."""
    return np.asarray(np.nanmedian(values, axis=(1, 2), keepdims=True))


def _of_replicas(away: Floats, kinds: Sequence[str], stages: Sequence[int]) -> Floats:
    """Return what all stages of a replica have in common, of which each has it in both kinds of passes."""
    rows = list(zip(kinds, stages, strict=True))
    each = [
        _shared(np.stack([np.nanmean(away[[one == (kind, stage) for one in rows]], axis=0) for kind in set(kinds)]))
        for stage in sorted(set(stages))
    ]
    return _shared(np.stack(each))


def _shared(values: Floats) -> Floats:
    """Return what rows have in common: their median; of two, the smaller one if they agree in sign, else 0."""
    if len(values) != 2:
        return np.asarray(np.nanmedian(values, axis=0))
    smaller = np.where(np.abs(values[0]) < np.abs(values[1]), values[0], values[1])
    return np.asarray(np.where(values[0] * values[1] > 0, smaller, 0.0))
