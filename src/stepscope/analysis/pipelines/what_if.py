"""What if no worker were slower than the others? Replays the steps of a pipelined training with other durations.

Replayed with the measured durations, a step takes as long as it took, without launch gaps; with the mean of each kind
of operation everywhere (of communication the median), as long as it ideally would. The ratio is the slowdown by
stragglers. Replaying with one stage, replica, worker or kind of operation made ideal shows its share. The method is
that of Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis" (2025).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.pipelines.operations import GC, PASSES, TALKS, TRANSFERS, Grid
from stepscope.analysis.pipelines.passes import PassTimes
from stepscope.analysis.pipelines.replay import Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from stepscope.analysis.pipelines.operations import Operations
    from stepscope.core.arrays import Floats, Mask


NEARLY = 0.8
"""The fewest workers are named that explain this share of what all late ones explain."""
MOST_WORKERS, MOST_REPLICAS = 16, 64
"""Maximum workers and replicas that are replayed one by one: those that compute longest."""
TOGETHER = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of workers that are replayed together."""
FEW = 3
"""Late workers are less than one of so many."""
ALL_TALK = "communication"

Worker = tuple[int, int]
"""Stage and replica."""


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
    """The same by replica, for those that compute longest."""
    workers: dict[Worker, float] = field(default_factory=dict)
    """The same by worker (a stage of a replica), for those that compute longer than the same stage of others."""
    late: tuple[Worker, ...] = ()
    """The fewest workers that together explain most of what all late ones explain, the latest first."""
    late_share: float = 0.0
    """Share that disappears if they are ideal."""
    ranks: Mapping[Worker, int] = field(default_factory=dict)
    """Numbers of workers, if the trace has them."""
    kinds: dict[str, float] = field(default_factory=dict)
    """The same by kind of operation; transfers between stages are one kind for each direction."""
    talk: float = 0.0
    """Share that disappears if all communication takes its median."""
    link: tuple[Worker, Worker] | None = None
    """The sender and receiver whose transfers take the most time beyond the median; None without transfers."""
    slow_stages: frozenset[int] = frozenset()
    """Stages that take longer in most replicas."""
    slow_replicas: frozenset[int] = frozenset()
    """Replicas that take longer in all stages, by more than the chance of a few micro-batches."""
    uneven: float = 0.0
    """Share that disappears if every micro-batch has the same work: the same factor for all its passes."""
    uneven_workers: float = 0.0
    """Share that disappears if every worker computes as long on average, and work stays as uneven as it is."""
    uneven_forward: float = 0.0
    """Share that disappears if forward passes took what worker and work explain: pauses of Python lengthen these."""
    uneven_backward: float = 0.0
    """The same of backward passes."""
    pass_correlation: float = 0.0
    """Correlation of the forward and backward passes of micro-batches: near 1 if long ones have more work."""

    @property
    def collected(self) -> float:
        """Return the share that disappears if every garbage collection that is timed by itself takes its mean."""
        return self.kinds.get(GC, 0.0)

    def facts(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "slowdown": self.slowdown,
            "step_seconds": self.seconds,
            "expected_step_seconds": self.ideal_seconds,
            "stages": {str(key): value for key, value in self.stages.items()},
            "replicas": {str(key): value for key, value in self.replicas.items()},
            "workers": {f"{stage}/{replica}": value for (stage, replica), value in self.workers.items()},
            "kinds": dict(self.kinds),
            "communication": self.talk,
            "uneven_work": self.uneven,
            "uneven_workers": self.uneven_workers,
            "uneven_forward": self.uneven_forward,
            "uneven_backward": self.uneven_backward,
            "pass_correlation": self.pass_correlation,
            "formula": "slowdown = replayed step / step in which every operation takes the mean of its kind",
        }


def what_if(operations: Operations) -> WhatIf:
    """Replay a training as it was, ideally, and with parts of it made ideal.

    By the published method a transfer takes until all transfers have ended that a worker began together with it. With
    virtual stages, it seems slow if one of them waits for a slow worker: the shares do not count this wait.
    """
    grid = Grid.of(operations)
    published = Replay.of(grid)
    if not grid.is_virtual:
        return _what_if(published)
    now, best = (float(one) for one in published.mixed(np.array([_Parts(grid).nothing(), _Parts(grid).everything()])))
    found = _what_if(Replay.of(grid, batched=True))
    return replace(found, slowdown=_ratio(now, best), seconds=now, ideal_seconds=best)


def _what_if(replay: Replay) -> WhatIf:
    """Return the slowdown by a replay, and the share of each part."""
    grid = replay.grid
    times = PassTimes.of(grid, replay.seconds)
    late = _late(times, grid)
    sets = [late[:count] for count in _counts(len(late), len(grid.stages) * len(grid.replicas))]
    copies = _longest(replay)
    masks = _masks(grid, late, sets, copies)
    now, best, *steps = (float(one) for one in replay.mixed(np.array(list(masks.values()))))
    lost = max(now - best, float(np.finfo(float).tiny))
    share = {name: (now - step) / lost for name, step in zip([*masks][2:], steps, strict=True)}
    chosen, together = _fewest(sets, [share["set", at] for at in range(len(sets))])
    found = WhatIf(
        _ratio(now, best),
        now,
        best,
        stages={stage: share["stage", stage] for stage in grid.stages},
        replicas={grid.replicas[at]: share["replica", at] for at in copies},
        workers={(one[0], grid.replicas[one[1]]): share["worker", one] for one in _singles(grid, late)},
        late=tuple((stage, grid.replicas[at]) for stage, at in chosen),
        late_share=together,
        ranks=grid.ranks,
        kinds={kind: share["kind", kind] for kind in _shown_kinds(grid)},
        talk=share["kind", ALL_TALK],
        link=_slowest_link(replay),
    )
    if times is None:
        return found
    calm = (
        times.evened(replay.seconds),
        times.levelled(replay.seconds),
        *(times.calmed(replay.seconds, (kind,)) for kind in PASSES),
    )
    uneven, workers, forward, backward = ((now - replay.given(each)) / lost for each in calm)
    return replace(
        found,
        slow_stages=times.slow_stages(),
        slow_replicas=frozenset(one for at, one in enumerate(grid.replicas) if times.is_slow[at]),
        uneven=uneven,
        uneven_workers=workers,
        uneven_forward=forward,
        uneven_backward=backward,
        pass_correlation=times.correlation(),
    )


def _ratio(now: float, best: float) -> float:
    return now / best if best > 0 else 1.0


def _late(times: PassTimes | None, grid: Grid) -> list[Worker]:
    """Return the late workers by stage and index of the replica, unless they are a whole replica."""
    late = times.late() if times is not None else []
    whole = len(grid.stages) > 1 and len(late) == len(grid.stages) and len({at for _, at in late}) == 1
    return [] if whole else late


def _singles(grid: Grid, late: list[Worker]) -> list[Worker]:
    """Return the workers that are replayed one by one."""
    every = [(stage, at) for stage in grid.stages for at in range(len(grid.replicas))]
    return (late or every)[:MOST_WORKERS] if len(grid.replicas) > 1 else []


def _masks(
    grid: Grid, late: list[Worker], sets: Sequence[Sequence[Worker]], copies: Sequence[int]
) -> dict[Hashable, Mask]:
    """Return what is made ideal in each replay: nothing, everything, and parts."""
    parts = _Parts(grid)
    found: dict[Hashable, Mask] = {"now": parts.nothing(), "best": parts.everything()}
    found |= {("stage", stage): parts.of_workers([(stage, None)]) for stage in grid.stages}
    found |= {("replica", at): parts.of_workers([(None, at)]) for at in copies}
    found |= {("worker", one): parts.of_workers([one]) for one in _singles(grid, late)}
    found |= {("set", at): parts.of_workers(each) for at, each in enumerate(sets)}
    found |= {("kind", one): parts.of_kinds(lambda kind, one=one: _shown(kind) == one) for one in _shown_kinds(grid)}  # type: ignore[misc]
    return found | {("kind", ALL_TALK): parts.of_kinds(lambda kind: kind in TALKS)}


def _shown_kinds(grid: Grid) -> list[str]:
    return sorted({_shown(key.kind) for key in grid.keys})


@dataclass(frozen=True)
class _Parts:
    """Masks of some operations, by operation and replica."""

    grid: Grid

    def nothing(self) -> Mask:
        """Return a mask of no operation."""
        return np.zeros((len(self.grid.keys), len(self.grid.replicas)), bool)

    def everything(self) -> Mask:
        """Return a mask of all operations."""
        return ~self.nothing()

    def of_workers(self, workers: Sequence[tuple[int | None, int | None]] | Sequence[Worker]) -> Mask:
        """Return a mask of workers by stage and index of the replica; None stands for all."""
        found = self.nothing()
        stages = np.array([key.stage for key in self.grid.keys])
        for stage, at in workers:
            rows = slice(None) if stage is None else stages == stage
            found[rows, slice(None) if at is None else at] = True
        return found

    def of_kinds(self, chosen: Callable[[str], bool]) -> Mask:
        """Return a mask of some kinds of operations."""
        found = self.nothing()
        found[[chosen(key.kind) for key in self.grid.keys]] = True
        return found


def _shown(kind: str) -> str:
    """Return the kind under which the share of an operation is shown."""
    return f"{kind.partition('-')[0]}-transfer" if kind in TRANSFERS else kind


def _counts(late: int, workers: int) -> list[int]:
    """Return how many of the late workers to replay together: few, as otherwise it is not them."""
    most = max(1, (workers - 1) // FEW)
    return [count for count in (1, *TOGETHER, late) if count <= min(late, most)]


def _fewest(sets: Sequence[Sequence[Worker]], shares: Sequence[float]) -> tuple[Sequence[Worker], float]:
    """Return the smallest set that explains nearly as much as the best."""
    best = max(shares, default=0.0)
    for some, share in zip(sets, shares, strict=True):
        if best > 0 and share >= NEARLY * best:
            return some, share
    return (), 0.0


def _longest(replay: Replay) -> list[int]:
    """Return the indices of the replicas that compute longest, in order of their number."""
    rows = [at for at, key in enumerate(replay.grid.keys) if key.kind in PASSES]
    total = replay.seconds[rows].sum(axis=(0, 1))
    return sorted(int(at) for at in np.argsort(-total, kind="stable")[:MOST_REPLICAS])


def _slowest_link(replay: Replay) -> tuple[Worker, Worker] | None:
    """Return the sender and receiver whose transfers take the most time beyond the usual."""
    beyond: dict[Worker, Floats] = {}
    keys = replay.grid.keys
    for one, *others in (each.members for each in replay.schedule.meetings):
        if len(others) == 1 and keys[one].kind in TRANSFERS:  # one alone was never sent
            low, high = sorted((keys[one].stage, keys[others[0]].stage))
            extra = np.maximum(0.0, replay.seconds[others[0]] - replay.ideal[others[0]]).sum(axis=0)
            beyond[low, high] = beyond.get((low, high), np.zeros(len(replay.grid.replicas))) + extra
    if not beyond:
        return None
    low, high = max(beyond, key=lambda pair: float(beyond[pair].max()))
    copy = replay.grid.replicas[int(beyond[low, high].argmax())]
    return (low, copy), (high, copy)
