"""The ranks that all others wait for, judged from the pace of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.analysis.series.robust import SIGMA, median
from stepscope.analysis.stragglers.cause import WORK, Cause, cause_of
from stepscope.analysis.stragglers.group import NUMA, group_of, grouped
from stepscope.analysis.stragglers.pace import COMMUNICATION, is_talk
from stepscope.core.node_names import shown_nodes
from stepscope.core.numbers import format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepscope.analysis.stragglers.pace import StepTiming
    from stepscope.core.arrays import Floats


AS_LATE = 0.5
"""A rank is late, too, if it is late by this share of the latest."""
SURE = 4.0
"""A rank is late only by more than this many standard errors, or spreads of the ranks that are on time."""
ENOUGH_RANKS = 8
"""Ranks from which their own spread is known."""
WAITED_IN = {COMMUNICATION: 6.0, "backward": 4.0, "optimizer": 3.0, "other": 2.0, "forward": 1.0, "data": 0.0}
"""How likely a rank waits for others in a phase; another phase in which ranks talk has 5, all others 2."""
DEVICE = "gpu_forward_seconds"
"""The fact that tells slow GPUs apart: backward passes contain the waiting for other ranks, forward passes do not."""
NAMED = 4
"""Ranks that a sentence names one by one."""


class LateRank(NamedTuple):
    """One rank that is late."""

    rank: int
    node: str
    seconds: float
    """By how much it is late in a step."""
    phase: str
    """The phase in which it loses most of that; empty if no phases are recorded."""
    cause: Cause
    phases: dict[str, float]
    """Seconds of each phase beyond those of the others."""


@dataclass(frozen=True)
class Lateness:
    """The ranks that all others wait for, the latest first."""

    late: tuple[LateRank, ...]
    ranks: int
    """Ranks of the job."""
    nodes: int
    """Nodes of the job; 1 if they are unknown."""
    step_seconds: float
    """A usual step."""
    node: str = ""
    """The node whose ranks are late, if it is all of them and no other."""
    group: str = ""
    """What all late ranks and no others have in common: "pipeline stage 3", "NUMA node 1"."""
    since: int | None = None
    """The step since which they are late; None if they always were."""
    until: int | None = None
    """The step until which they were late; None if they still are."""
    often: float = 1.0
    """Share of the steps since then in which they are late."""
    names: Mapping[str, str] = field(default_factory=dict)
    """How to show each node; a missing one by its whole name."""

    @property
    def first(self) -> LateRank:
        """The latest rank."""
        return self.late[0]

    @property
    def seconds(self) -> float:
        """By how much all others wait for it in a step."""
        return self.first.seconds

    @property
    def who(self) -> str:
        """The ranks in words: "rank 17 on node-3", "node-3 (ranks 24 to 31)", "pipeline stage 3 (ranks 6 and 7)"."""
        numbers = sorted(one.rank for one in self.late)
        text, node = ranks_in_words(numbers), self.names.get(self.first.node, self.first.node)
        if self.group:
            where = f" of {node}" if self.first.cause.reason == NUMA and self.nodes > 1 and node else ""
            return f"{self.group}{where} ({text})"
        if self.nodes < 2 or not node:
            return text
        if len(numbers) > 1:
            return f"{node} ({text})" if self.node else text
        return f"{text} on {node}"

    def text(self, seconds: float | None = None, step: float | None = None) -> str:
        """Return the verdict in one sentence; `seconds` and `step` replace the usual lateness and step."""
        late, whole = self.seconds if seconds is None else seconds, self.step_seconds if step is None else step
        others = self.ranks - len(self.late)
        wait = "the other rank waits" if others == 1 else f"the other {others} ranks wait"
        text = f"{wait} {format_value(late, 'seconds')} in a step of {format_value(whole, 'seconds')} for {self.who}"
        if self.often < 1.0:
            text += f" in every {max(2, round(1 / self.often))}th step"
        if self.since is not None:
            text += f" since step {self.since}" if self.until is None else f" from step {self.since} to {self.until}"
        whose = f"of rank {self.first.rank}: " if len(self.late) > 1 and len(self._kinds()) > 1 else ""
        more = self._other_causes()
        return f"{text}: {whose}{self.first.cause.text}{f'; {more}' if more else ''}"

    def _kinds(self) -> set[str]:
        return {one.cause.kind for one in self.late}

    def _other_causes(self) -> str:
        """Return the ranks that are late for another reason."""
        other = [one for one in self.late if one.cause.kind != self.first.cause.kind]
        return "; ".join(f"rank {one.rank}: {one.cause.kind} ({one.phase})" for one in other[:NAMED])

    def remedy(self) -> str:
        """Return what to do."""
        cause = self.first.cause
        return remedy("straggler", cause.reason or ("uneven" if cause.kind == WORK else cause.kind), who=self.who)

    def facts(self) -> dict[str, Any]:
        """Return the evidence as plain values."""
        first = self.first
        return {
            "late_rank": first.rank,
            "late_ranks": [one.rank for one in self.late],
            "late_group": self.group,
            "late_node": self.node or (first.node if len(self.late) == 1 else ""),
            "late_seconds": self.seconds,
            "phase": first.phase,
            "phases": first.phases,
            "cause": first.cause.kind,
            "reason": first.cause.reason,
            "causes": {str(one.rank): one.cause.kind for one in self.late},
            "since_step": self.since,
            "until_step": self.until,
            "steps_slowest": self.often,
            "ranks": self.ranks,
        }

    def confidence_share(self) -> float:
        """Return how late the latest is, as a share of a step."""
        return self.seconds / self.step_seconds if self.step_seconds > 0 else 0.0

    def between(self, since: int | None, until: int | None) -> Lateness:
        """Return the same, but only between two steps."""
        return replace(self, since=since, until=until)


def ranks_in_words(numbers: Sequence[int]) -> str:
    """Return rank numbers in words: "rank 3", "ranks 3 and 5", "ranks 8 to 15", "ranks 1, 4, 6 and 9 more"."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"ranks {numbers[0]} to {numbers[-1]}"
    shown = [str(one) for one in numbers[:NAMED]]
    if len(numbers) > NAMED:
        return f"ranks {', '.join(shown)} and {len(numbers) - NAMED} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def judge(every: Sequence[StepTiming], share: float) -> Lateness | None:
    """Return who is late by at least a share of a step; None if nobody is, or more than half are."""
    known = sorted((pace for pace in every if pace.seconds > 0), key=lambda pace: pace.rank)
    if len(known) < 2:
        return None
    step = median([pace.seconds for pace in known])
    beyond = _beyond_by_own(known, share * step)
    if beyond is None:
        beyond = _beyond_by_phases(known, share * step)
    if beyond is None and all(DEVICE in pace.facts for pace in known):
        # The host only starts its GPU, so all hosts wait equally long for the slowest one: here, for its own passes.
        known = [replace(pace, phases={**pace.phases, "forward": pace.facts[DEVICE]}) for pace in known]
        beyond = _beyond(np.array([pace.facts[DEVICE] for pace in known]), np.zeros(len(known)), share * step)
    if beyond is None:
        return None
    return _lateness(known, beyond, step)


def _lateness(known: Sequence[StepTiming], beyond: Floats, step: float) -> Lateness:
    """Return who is late by so much, with causes; `step` is a usual one."""
    at = [place for place in np.argsort(-beyond, kind="stable").tolist() if beyond[place] > 0]
    others = [pace for place, pace in enumerate(known) if beyond[place] <= 0]
    late = tuple(_late(known[place], others, min(float(beyond[place]), step)) for place in at)
    node = _node_of(late, known)
    shared = group_of([known[place] for place in at], others) if not node else None  # or it is the machine
    if shared is not None:
        late = tuple(one._replace(cause=grouped(one.cause, shared)) for one in late)
    group = shared.name if shared is not None and late[0].cause.reason == shared.reason else ""
    names = shown_nodes(pace.node for pace in known)
    return Lateness(late, len(known), len(names), step, node, group, names=names)


def _beyond_by_own(known: Sequence[StepTiming], least: float) -> Floats | None:
    """Return by how much each rank is late by the work that it does itself, 0 for those on time; None if none is."""
    noise = np.array([pace.noise for pace in known])
    found = [_beyond(np.array([pace.own_seconds for pace in known]), noise, least)]
    if all(pace.working_seconds is not None for pace in known):  # else a backward pass may contain waiting
        noise = np.array([pace.working_noise or pace.noise for pace in known])
        found.append(_beyond(np.array([pace.working_seconds or 0.0 for pace in known]), noise, least))
    return max((one for one in found if one is not None), key=lambda one: float(one.max()), default=None)


def _beyond_by_phases(known: Sequence[StepTiming], least: float) -> Floats | None:
    """Return the same by phases: a late rank spends more time in one of them, and less where the others wait.

    So a link is found, and ranks that wait in a phase where nobody expects it.
    """
    names = sorted(set.intersection(*(set(pace.phases) for pace in known)))
    if not names:
        return None
    table = np.array([[pace.phases[name] for name in names] for pace in known])
    away = np.stack([beyond_others(table[:, at]) for at in range(len(names))], axis=1)
    waits = np.array([_waited_in(name) for name in names])
    most, least_at = away.argmax(axis=1), away.argmin(axis=1)
    gain, loss = away.clip(0).sum(axis=1), (-away).clip(0).sum(axis=1)
    both = np.where(waits[most] < waits[least_at], np.minimum(gain, loss), 0.0)
    if float(both.max()) < least:
        return None
    return _beyond(both, np.array([max(pace.noise, pace.working_noise) for pace in known]), least)


def _waited_in(phase: str) -> float:
    return WAITED_IN.get(phase, 5.0 if is_talk(phase) else 2.0)


def _beyond(values: Floats, noise: Floats, least: float) -> Floats | None:
    """Return by how much values exceed those of the others, 0 for those that do not by enough; None if none does."""
    away = beyond_others(values)
    lower = values[values <= np.median(values)]
    width = SIGMA * median(np.abs(lower - np.median(lower))) if len(values) >= ENOUGH_RANKS else 0.0
    sure = SURE * np.maximum(width, np.hypot(noise, np.median(noise)))
    worst = float(away.max())
    late = (away >= least) & (away >= sure) & (away >= AS_LATE * worst)
    if not late.any() or 2 * int(late.sum()) > len(values):
        return None
    return np.where(late, away - 0.0, 0.0)


def beyond_others(values: Floats) -> Floats:
    """Return by how much each value exceeds the median of all others."""
    count = len(values)
    order = np.argsort(values, kind="stable")
    ordered, place = values[order], np.empty(count, np.int64)
    place[order] = np.arange(count)
    rest = count - 1
    low, high = (rest - 1) // 2, rest // 2
    others = (ordered[low + (low >= place)] + ordered[high + (high >= place)]) / 2
    return np.asarray(values - others)


def _late(pace: StepTiming, others: Sequence[StepTiming], seconds: float) -> LateRank:
    names = sorted({name for one in (pace, *others) for name in one.phases})
    usual = {name: median([one.phases.get(name, 0.0) for one in others]) for name in names}
    phases = {name: pace.phases.get(name, 0.0) - usual[name] for name in names}
    where = max(phases, key=lambda name: phases[name], default="")
    if where and phases[where] <= 0:
        where = ""
    return LateRank(pace.rank, pace.node, seconds, where, cause_of(pace, others, where, seconds), phases)


def _node_of(late: Sequence[LateRank], known: Sequence[StepTiming]) -> str:
    """Return the node whose ranks are late: all of them, and no rank elsewhere."""
    nodes = {one.node for one in late}
    size = Counter(pace.node for pace in known)
    name = next(iter(nodes))
    return name if len(nodes) == 1 and len(size) > 1 and size[name] == len(late) else ""
