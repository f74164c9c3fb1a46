"""Runs the samplers, each at its own interval and within its budget; none can disturb another."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import in_words
from stepscope.core.walls import wall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.core.vocabulary import Metric
    from stepscope.samplers.sampler import Sampler
    from stepscope.watcher.journal import Journal

LONGEST = 60.0
"""Longest interval, in seconds, of a sampler that fails or costs too much."""
PATIENCE = 3
"""Samples over budget in a row after which a sampler runs less often: one alone may be the machine's fault."""
BLOCKED = 0.1
"""Waiting for more seconds than this counts as cost although no CPU was used: a file system hangs."""
SLACK = 0.01
"""A sampler may run this many seconds early: the next tick would be late."""
GROUPS = {
    **dict.fromkeys(("nvidia", "amd", "other_gpus"), "gpu"),
    **dict.fromkeys(("disk", "network"), "io"),
    "process": "processes",
}
"""Section of the configuration that a sampler belongs to, by its name; "cpu" for all others."""
MOST_NAMES = 10_000
"""Names whose instance is cached, because they come every second."""
Costs = tuple[float, float]
"""CPU seconds of the thread, and wall seconds."""


def costs() -> Costs:
    """Read both clocks."""
    return time.thread_time(), time.perf_counter()


@dataclass(frozen=True)
class SamplingPlan:
    """The seconds between two samples of each sampler."""

    interval: float = 1.0
    intervals: Mapping[str, float] = field(default_factory=dict)
    """By the name of the sampler, where it differs."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """By the phase of the training, for all samplers, while it lasts."""
    budget: float = 0.005
    """Share of one CPU that one sampler may use."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> SamplingPlan:
        """Read the plan from the configuration; an interval of 0 is unset."""
        return cls(
            settings.get("samplers.interval", cls.interval),
            _below("samplers.intervals.", settings),
            _below("samplers.phases.", settings),
            settings.get("samplers.budget", cls.budget),
        )

    def of_sampler(self, name: str, phase: str = "") -> float:
        """Return the seconds between two samples of a sampler in a phase of the training."""
        return self.phases.get(phase) or self.intervals.get(name) or self.interval


def by_instance(values: Mapping[str, float]) -> list[dict[str, float]]:
    """Split values into a row per instance (a GPU, a rank) and one for the rest.

    A run declares each set of names once. Some values of an instance come more rarely than others, so rows of sixteen
    instances would almost never have the same names.
    """
    rows: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        rows.setdefault(_group(name), {})[name] = value
    return list(rows.values())


@lru_cache(MOST_NAMES)
def _group(name: str) -> str:
    """Return the instance that a value belongs to; empty if none."""
    group, _, rest = name.partition("/")
    instance, slash, _ = rest.partition("/")
    is_own = bool(slash) and group in {"gpu", "process"} and instance.isdecimal()
    return f"{group}/{instance}" if is_own else ""


def _below(prefix: str, settings: Mapping[str, Any]) -> dict[str, float]:
    return {key[len(prefix) :]: value for key, value in settings.items() if key.startswith(prefix) and value}


@dataclass
class Turn:
    """When a sampler runs next, and how it did."""

    due: float = 0.0
    slower: float = 1.0
    """Factor of its interval: above 1 after failures or too high a cost."""
    over: int = 0
    failing: str = ""


@dataclass
class SampleRound:
    """The result of one round: a row per source, and events."""

    rows: list[dict[str, float]] = field(default_factory=list)
    events: list[dict[str, object]] = field(default_factory=list)


class Sampling:
    """Runs the samplers that are due."""

    def __init__(
        self, samplers: Sequence[Sampler], plan: SamplingPlan, journal: Journal, read_costs: Callable[[], Costs] = costs
    ) -> None:
        """Hold samplers; none has run yet."""
        self.samplers, self._plan, self._journal, self._costs = samplers, plan, journal, read_costs
        self._turns = [Turn() for _ in samplers]
        self.latest: dict[str, float] = {}
        """The last value of every metric."""
        self._quick = self._quick_until = self._due = 0.0

    def is_due(self, now: int) -> bool:
        """Return whether a sampler is due at `now` (monotonic ns)."""
        return now / 1e9 >= self._due - SLACK

    def round(self, now: int, phase: str = "") -> SampleRound:
        """Run the samplers that are due at `now` (monotonic ns); a `phase` of the training may have an interval."""
        seconds = now / 1e9
        found = SampleRound()
        for sampler, turn in zip(self.samplers, self._turns, strict=True):
            if seconds < turn.due - SLACK:
                continue
            interval = self._plan.of_sampler(sampler.name, phase)
            if seconds < self._quick_until:
                interval = min(interval, self._quick)
            self._ask(sampler, turn, now, interval, found)
            following = turn.due + interval * turn.slower  # on a grid: delays do not add up
            turn.due = following if following > seconds else seconds + interval * turn.slower
        self._due = min((turn.due for turn in self._turns), default=float("inf"))
        return found

    def quicken(self, interval: float, until: float) -> None:
        """Run all samplers at least every `interval` seconds `until` then (monotonic seconds), within their budgets."""
        self._quick, self._quick_until = interval, until
        self._due = 0.0
        for turn in self._turns:
            turn.due = 0.0

    def meet(self, facts: Mapping[str, Any]) -> None:
        """Announce a new rank to the samplers: `facts` is the extra part of its ring's identity."""
        for sampler in self.samplers:
            if "visible" in facts and hasattr(sampler, "also_visible"):
                sampler.also_visible(facts["visible"])

    def close(self) -> None:
        """Close the samplers that hold something, such as a helper process."""
        for sampler in self.samplers:
            if hasattr(sampler, "close"):
                sampler.close()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics that the samplers declare."""
        return tuple(metric for sampler in self.samplers for metric in sampler.metrics)

    def absent(self) -> dict[str, str]:
        """Return the metrics that this machine cannot measure, with reason and remedy."""
        return {what: why for sampler in self.samplers for what, why in sampler.absent().items()}

    def devices(self) -> dict[str, str]:
        """Return the names of the devices that the samplers found, by the prefix of their metrics."""
        devices = [device for sampler in self.samplers for device in getattr(sampler, "devices", ())]
        return {f"gpu/{device.index}": device.name for device in devices if device.name}

    def _ask(self, sampler: Sampler, turn: Turn, now: int, interval: float, found: SampleRound) -> None:
        before = self._costs()
        values: Mapping[str, float] | None = None
        events: Sequence[dict[str, object]] = ()
        with wall(lambda error: self._fail(sampler, turn, interval, in_words(error), found)):
            values, events = sampler.sample(now), sampler.events()
        if values is None:  # it failed
            return
        after = self._costs()
        if turn.failing:
            turn.failing, turn.slower = "", 1.0
            found.events.append({"kind": "sampler_back", "sampler": sampler.name})
        if values:
            found.rows += by_instance(values)
            self.latest |= values
        found.events += events
        elapsed = after[1] - before[1]
        self._weigh(sampler, turn, max(after[0] - before[0], elapsed if elapsed > BLOCKED else 0.0), interval, found)

    def _fail(self, sampler: Sampler, turn: Turn, interval: float, why: str, found: SampleRound) -> None:
        turn.slower = min(turn.slower * 2, max(1.0, LONGEST / interval))
        if turn.failing:
            return
        turn.failing = why
        self._journal.note(f"cannot sample {sampler.name}: {why}; the other sources continue")
        found.events.append({"kind": "sampler_failed", "sampler": sampler.name, "error": why[:500]})

    def _weigh(self, sampler: Sampler, turn: Turn, cost: float, interval: float, found: SampleRound) -> None:
        """Run a sampler less often if it exceeds its budget, and more often again once it is cheap."""
        allowed = self._plan.budget * interval * turn.slower
        if cost > allowed:
            turn.over += 1
        else:
            turn.over = 0
            if turn.slower > 1.0 and cost < allowed / 4:
                turn.slower = max(1.0, turn.slower / 2)
        if turn.over < PATIENCE or turn.slower * interval >= LONGEST:
            return
        turn.over, turn.slower = 0, min(turn.slower * 2, max(1.0, LONGEST / interval))
        every = interval * turn.slower
        message = f"sampler {sampler.name} takes {cost * 1e3:.1f} ms: asked every {every:g} s from now on"
        self._journal.note(message, f"slow {sampler.name}")
        found.events.append(
            {"kind": "sampler_slowed", "sampler": sampler.name, "cost_seconds": cost, "interval_seconds": every}
        )


def build_sampling(
    settings: Mapping[str, Any],
    run: Path,
    pids: Callable[[], Mapping[int, int]],
    journal: Journal,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> Sampling:
    """Return the samplers of this machine that the configuration does not switch off.

    Args:
        settings: the configuration by key; missing keys keep their default.
        run: the run's folder, whose disk is sampled.
        pids: returns the training's processes by rank.
        journal: gets the failures of samplers.
        root: the folder that holds /proc and /sys.
        environ: the environment of the training, which names the GPUs it sees.
    """
    plan = SamplingPlan.of(settings)
    if not settings.get("samplers.enabled", True):
        return Sampling([], plan, journal)
    from stepscope.samplers.machine import host_samplers
    from stepscope.samplers.nvidia import NvidiaSampler

    every_gpu, visible = bool(settings.get("samplers.all_gpus")), environ.get("CUDA_VISIBLE_DEVICES")
    nvidia = NvidiaSampler(visible, all_devices=every_gpu, pids=lambda: set(pids().values()))
    sections = {sampler: GROUPS.get(sampler.name, "cpu") for sampler in (*host_samplers(root, run, pids), nvidia)}
    chosen = [sampler for sampler, section in sections.items() if settings.get(f"samplers.{section}", True)]
    intervals = {sampler.name: plan.intervals.get(sections[sampler], 0.0) for sampler in chosen}
    return Sampling(chosen, replace(plan, intervals=intervals), journal)
