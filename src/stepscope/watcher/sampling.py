"""Ask the samplers: each at its own interval, within its budget, and never one at the cost of another."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepscope.core.vocabulary import Metric
    from stepscope.samplers.sampler import Sampler
    from stepscope.watcher.journal import Journal

LONGEST = 60.0
"""Seconds between two looks at a source that fails or costs too much, at most."""
PATIENCE = 3
"""Samples over budget in a row that make a sampler back off: one alone may be the machine's fault."""
BLOCKED = 0.1
"""Seconds of waiting that count as cost although no processor was used: a file system that hangs."""
SLACK = 0.01
"""Seconds before its time at which a sampler is asked all the same: the next tick would be late."""
MOST_NAMES = 10_000
"""Names whose instance is remembered."""
Costs = tuple[float, float]
"""Processor seconds of the thread, and wall seconds."""


def costs() -> Costs:
    """Read both clocks of cost."""
    return time.thread_time(), time.perf_counter()


@dataclass(frozen=True)
class Plan:
    """How often to ask whom; seconds."""

    interval: float = 1.0
    intervals: Mapping[str, float] = field(default_factory=dict)
    """By the name of the sampler, where it differs."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """By the phase of the training, for all samplers, while it lasts."""
    budget: float = 0.005
    """Share of one processor that one sampler may take."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Plan:
        """Read the plan from the configuration's keys; an interval of 0 is one that nobody set."""
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

    Each row's set of names is declared once in the run. Of one instance some values come more rarely than others; of
    sixteen together hardly two samples would have the same names.
    """
    rows: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        group = _groups.get(name)
        if group is None:
            group = _group(name)
        row = rows.get(group)
        if row is None:
            row = rows[group] = {}
        row[name] = value
    return list(rows.values())


def _group(name: str) -> str:
    """Return which instance a value belongs to; empty if none."""
    group, _, rest = name.partition("/")
    instance, slash, _ = rest.partition("/")
    is_own = bool(slash) and group in {"gpu", "process"} and instance.isdecimal()
    found = f"{group}/{instance}" if is_own else ""
    if len(_groups) < MOST_NAMES:
        _groups[name] = found
    return found


_groups: dict[str, str] = {}
"""What `_group` has found, for names that come every second."""


def _below(prefix: str, settings: Mapping[str, Any]) -> dict[str, float]:
    return {key[len(prefix) :]: value for key, value in settings.items() if key.startswith(prefix) and value}


@dataclass
class Turn:
    """When a sampler is next asked, and how it did."""

    due: float = 0.0
    slower: float = 1.0
    """What its interval is multiplied by: more than 1 after failures or too high a cost."""
    over: int = 0
    failing: str = ""


@dataclass
class Sample:
    """What one round brought: a row per source, what happened, what the machine does not tell."""

    rows: list[dict[str, float]] = field(default_factory=list)
    events: list[dict[str, object]] = field(default_factory=list)


class Sampling:
    """Ask the samplers that are due."""

    def __init__(
        self,
        samplers: Sequence[Sampler],
        plan: Plan,
        journal: Journal,
        read_costs: Callable[[], Costs] = costs,
    ) -> None:
        """Hold samplers; none is asked yet."""
        self.samplers, self._plan, self._journal, self._costs = samplers, plan, journal, read_costs
        self._turns = [Turn() for _ in samplers]
        self.latest: dict[str, float] = {}
        """The last value of everything."""
        self._quick, self._quick_until = 0.0, 0.0
        self._due = 0.0

    def is_due(self, now: int) -> bool:
        """Say whether somebody has to be asked at `now` (monotonic ns)."""
        return now / 1e9 >= self._due - SLACK

    def round(self, now: int, phase: str = "") -> Sample:
        """Ask whoever is due at `now` (monotonic ns), in a `phase` of the training that may have its own interval."""
        seconds = now / 1e9
        found = Sample()
        for sampler, turn in zip(self.samplers, self._turns, strict=True):
            if seconds < turn.due - SLACK:
                continue
            interval = self._plan.of_sampler(sampler.name, phase)
            if seconds < self._quick_until:
                interval = min(interval, self._quick)
            self._ask(sampler, turn, now, interval, found)
            following = turn.due + interval * turn.slower  # on a grid: ticks that come late do not add up
            turn.due = following if following > seconds else seconds + interval * turn.slower
        self._due = min((turn.due for turn in self._turns), default=float("inf"))
        return found

    def quicken(self, interval: float, until: float) -> None:
        """Ask everybody at least every `interval` seconds, until then (monotonic, in seconds), within their budgets."""
        self._quick, self._quick_until = interval, until
        self._due = 0.0
        for turn in self._turns:
            turn.due = 0.0

    def meet(self, facts: Mapping[str, Any]) -> None:
        """Tell the sources about a rank that has come: `facts` is what its ring says of it."""
        for sampler in self.samplers:
            meet = getattr(sampler, "also_visible", None)
            if meet is not None and "visible" in facts:
                meet(facts["visible"])

    def close(self) -> None:
        """Let go of what the sources hold: helper processes."""
        for sampler in self.samplers:
            close = getattr(sampler, "close", None)
            if close is not None:
                close()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Everything that the sources can tell."""
        return tuple(metric for sampler in self.samplers for metric in sampler.metrics)

    def absent(self) -> dict[str, str]:
        """Return what the sources cannot tell on this machine, with reason and remedy."""
        return {what: why for sampler in self.samplers for what, why in sampler.absent().items()}

    def devices(self) -> dict[str, str]:
        """Return what the devices are called that sources have found, by the beginning of their metrics."""
        found: dict[str, str] = {}
        for sampler in self.samplers:
            for device in getattr(sampler, "devices", ()):
                if device.name:
                    found[f"gpu/{device.index}"] = device.name
        return found

    def _ask(self, sampler: Sampler, turn: Turn, now: int, interval: float, found: Sample) -> None:
        before = self._costs()
        try:
            values = sampler.sample(now)
            events = sampler.events()
        except Exception as error:  # noqa: BLE001 - one source that fails, for whatever reason, must not stop the others
            self._fail(sampler, turn, interval, in_words(error), found)
            return
        after = self._costs()
        if turn.failing:
            turn.failing, turn.slower = "", 1.0
            found.events.append({"kind": "sampler_back", "sampler": sampler.name})
        if values:
            found.rows += by_instance(values)
            self.latest |= values
        found.events += events
        wall = after[1] - before[1]
        self._weigh(sampler, turn, max(after[0] - before[0], wall if wall > BLOCKED else 0.0), interval, found)

    def _fail(self, sampler: Sampler, turn: Turn, interval: float, why: str, found: Sample) -> None:
        turn.slower = min(turn.slower * 2, max(1.0, LONGEST / interval))
        if turn.failing:
            return
        turn.failing = why
        self._journal.note(f"cannot sample {sampler.name}: {why}; the other sources go on")
        found.events.append({"kind": "sampler_failed", "sampler": sampler.name, "error": why[:500]})

    def _weigh(self, sampler: Sampler, turn: Turn, cost: float, interval: float, found: Sample) -> None:
        """Ask a sampler less often that takes more than its budget, and more often again when it has become cheap."""
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
        self._journal.note(
            f"sampler {sampler.name} takes {cost * 1e3:.1f} ms: asked every {every:g} s from now on",
            f"slow {sampler.name}",
        )
        found.events.append(
            {"kind": "sampler_slowed", "sampler": sampler.name, "cost_seconds": cost, "interval_seconds": every}
        )
