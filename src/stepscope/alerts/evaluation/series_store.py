"""The series that rules read: a window per rank and metric, and series that combine all ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np

from stepscope.alerts.evaluation.conditions import baseline_stride
from stepscope.alerts.evaluation.detectors import DETECTORS
from stepscope.alerts.evaluation.new_points import merged, patience_of
from stepscope.alerts.evaluation.series_window import Need, SeriesWindow
from stepscope.alerts.rules import expression
from stepscope.alerts.rules.expression import POINTS, STEPS, CallNode, Node
from stepscope.alerts.rules.rule import EACH, VALUE
from stepscope.core.vocabulary import aliases, metric_of, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from stepscope.alerts.evaluation.new_points import PointsByMetric
    from stepscope.alerts.rules.rule import Rule
    from stepscope.core.arrays import Floats


OWN = "own"
"""A pattern that matches the program's own metrics that a general rule can evaluate: see `is_own`."""
MOST_OWN = 64
"""The first metrics that such a rule reads: each takes 48 KiB."""
WORD = re.compile(r"[a-z]+")
COURSES = frozenset({"accuracy", "acc", "reward", "rewards", "score"})
PLANNED = frozenset(
    WORD.findall(
        "loss lr rate epoch step steps iteration iterations batch batches samples tokens time times runtime seconds "
        "sec ms throughput speed memory mem bytes total count interval elapsed eta progress beta alpha temperature "
        "momentum decay scale weight tflops tflop mfu size length num seed norm grad optimizer params zeros"
    )
)
"""Words in names of losses, schedules, counters, sizes and times."""
MACHINE = ("cpu/", "gpu/", "memory/", "disk/", "network/", "process/", "pressure/", "cgroup/", "swap/", "stepscope/")
SILENT = 60.0
"""Seconds after which a rank that no longer logs a metric is not waited for."""
Name = tuple[int, str]
Points = tuple["Floats", "Floats", "Floats"]
"""Steps, times and values."""


def bind(pattern: str, name: str) -> tuple[str, ...] | None:
    """Return the values of the `*` parts of a pattern in a name; None if the name does not match."""
    if pattern == OWN:
        return () if is_own(name) else None
    if "*" not in pattern:
        return () if pattern == name else None
    parts, given = pattern.split("/"), name.split("/")
    if len(parts) != len(given) or not all(map(fnmatchcase, given, parts)):
        return None
    return tuple(own for part, own in zip(parts, given, strict=True) if "*" in part)


@lru_cache(maxsize=4096)
def is_own(name: str) -> bool:
    """Return whether a metric is the program's own and may take any course: no loss, time, rate or counter.

    Losses and metrics of the vocabulary, except accuracy and reward, have their own rules. Times, memory and throughput
    depend on the machine as much as on the program; schedules and counters are planned.
    """
    words = set(WORD.findall(name.lower()))
    known = metric_of(name) is not None or name.startswith(MACHINE)
    return bool(words & COURSES) or not (known or unit_of(name) or words & PLANNED)


def fill_in(pattern: str, binding: tuple[str, ...]) -> str:
    """Return a pattern with its `*` parts replaced by those of one instance."""
    waiting = iter(binding)
    return "/".join(next(waiting, part) if "*" in part else part for part in pattern.split("/"))


def needs_of(rule: Rule) -> dict[str, Need]:
    """Return how much a rule reads of each of its metrics, by name or pattern."""
    if rule.detect:
        detector = DETECTORS[rule.detect]
        options = {**detector.options, **rule.options}
        points = max(detector.need.points, int(1.2 * options.get("points", 0)), int(options.get("steps", 0)))
        need = detector.need._replace(points=points)
        others = dict.fromkeys(detector.others, Need(need.points if detector.across else 1))
        return others | dict.fromkeys(rule.metric or detector.metric, need)
    found: dict[str, Need] = {}
    for node in (rule.condition, rule.clearing):
        if node is not None:
            for name, need in _needs(node).items():
                for each in rule.metric if name == VALUE else (name,):
                    found[each] = found.get(each, Need()).both(need)
    return found


def _needs(node: Node) -> dict[str, Need]:
    found: dict[str, Need] = dict.fromkeys(expression.metrics_of(node), Need(2))
    for part in expression.walk(node):
        if isinstance(part, CallNode):
            need = _need(part)
            for name in expression.metrics_of(part):
                found[name] = found[name].both(need)
    return found


def _need(call: CallNode) -> Need:
    if call.name == "first":
        return Need(head=True)
    points = 2 + sum(int(window.size) for window in call.windows if window.unit == POINTS)
    if call.name == "baseline":
        points += baseline_stride(int(call.windows[0].size))
    seconds = max((window.size for window in call.windows if window.unit == expression.TIME), default=0.0)
    steps = max((window.size for window in call.windows if window.unit == STEPS), default=0.0)
    return Need(points, seconds * 1.1, steps * 1.1)


@dataclass
class CombinedSeries:
    """One metric of all ranks combined into one series, by step."""

    window: SeriesWindow
    how: str
    done: float = -np.inf
    """The last step that was combined."""
    members: dict[int, SeriesWindow] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    """By rank, how many of its points are done and need not be read again."""

    def advance(self) -> None:
        """Combine the steps that every rank has logged by now."""
        members = [(rank, member) for rank, member in self.members.items() if len(member)]
        newest = max(member.last_time for _, member in members)
        members = [(rank, member) for rank, member in members if newest - member.last_time <= SILENT]
        upto = min(member.last_step for _, member in members)
        if np.isnan(upto):  # rows without a step have nothing in common
            return
        parts = [self._new(rank, member, upto) for rank, member in members]
        common = parts[0][0]
        if len(common) and not all(len(each[0]) == len(common) and (each[0] == common).all() for each in parts):
            for step, _, _ in parts[1:]:
                common = common[np.isin(common, step)]
        if len(common) > 1 and not (common[1:] > common[:-1]).all():
            common = np.unique(common)
        if len(common):
            self._combine(common, parts)
        self.done = max(self.done, upto)

    def _new(self, rank: int, member: SeriesWindow, upto: float) -> Points:
        """Return the points of a rank that are not done, up to a step."""
        gone = member.total - len(member)
        start = max(0, self.taken.get(rank, 0) - gone)
        step = member.step[start:]
        waits = step > max(self.done, upto)
        self.taken[rank] = gone + start + (int(waits.argmax()) if waits.any() else len(step))
        mine = (step > self.done) & (step <= upto)
        if mine.all():
            return step, member.time[start:], member.value[start:]
        return step[mine], member.time[start:][mine], member.value[start:][mine]

    def _combine(self, common: Floats, parts: list[Points]) -> None:
        """Combine the points of all ranks at these steps."""
        if any(len(step) != len(common) or (step != common).any() for step, _, _ in parts):
            parts = [_at(common, part) for part in parts]
        values = np.array([value for _, _, value in parts])
        times = np.array([time for _, time, _ in parts])
        with np.errstate(all="ignore"):
            value = np.asarray(_WAYS[self.how](values))
        self.window.extend(common, np.maximum.accumulate(times.max(axis=0)), value, hash(common.tobytes()))


def _at(common: Floats, part: Points) -> Points:
    """Return the points of one rank at these steps, which it all has."""
    step, time, value = part
    order = np.argsort(step, kind="stable")
    places = order[np.searchsorted(step[order], common)]
    return common, time[places], value[places]


_WAYS: dict[str, Callable[[Floats], Any]] = {
    "max": lambda values: values.max(axis=0),
    "min": lambda values: values.min(axis=0),
    "mean": lambda values: values.mean(axis=0),
    "sum": lambda values: values.sum(axis=0),
    "spread": lambda values: values.max(axis=0) / np.median(values, axis=0),
}
"""How the values of several ranks, one per row, are combined."""


def _spellings(name: str) -> list[tuple[str, float]]:
    """Return the names of a metric, and the factor of its values under each.

    A metric that a program logs never replaces one that the watcher samples from a device or a process.
    """
    alias = aliases.get(name)
    if alias is None or "*" in alias.canonical:
        return [(name, 1.0)]
    return [(name, 1.0), (alias.canonical, alias.factor)]


class SeriesStore:
    """The windows of all metrics that a rule reads."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Collect from the rules which metrics are wanted."""
        self._needs: list[tuple[str, Need]] = []
        self._patience: list[tuple[str, float]] = []
        self._ways: list[tuple[str, str]] = []
        for rule in rules:
            needs = needs_of(rule)
            self._needs += needs.items()
            self._patience += [(pattern, patience_of(rule)) for pattern in needs]
            across = bool(rule.detect) and DETECTORS[rule.detect].across
            if rule.over != EACH or across:
                self._ways += [(pattern, rule.over) for pattern in needs]
        self.windows: dict[Name, SeriesWindow] = {}
        self._targets: dict[Name, list[tuple[SeriesWindow, float]]] = {}
        self._together: dict[tuple[str, str], CombinedSeries] = {}
        self._logged: set[str] = set()
        self._own: set[str] = set()
        self._machine: list[int] = []
        """Negative ranks under which watchers write their own rows."""
        self.version = 0
        """Grows with every new series."""

    def wants(self, rank: int, name: str) -> bool:
        """Return whether a rule wants a metric of a rank, under its name or the canonical one."""
        key = (rank, name)
        if key not in self._targets:
            self._targets[key] = self._meet(rank, name)
        return bool(self._targets[key])

    def patience(self, name: str) -> float:
        """Return how many seconds samples of a metric may wait before they are evaluated."""
        names = [spelling for spelling, _ in _spellings(name)]
        found = [
            patience for pattern, patience in self._patience if any(bind(pattern, each) is not None for each in names)
        ]
        return min(found, default=0.0)

    def _meet(self, rank: int, name: str) -> list[tuple[SeriesWindow, float]]:
        found = []
        for spelling, factor in _spellings(name):
            wanted = [need for pattern, need in self._needs if self._binds(pattern, spelling)]
            taken = self.windows.get((rank, spelling))
            if not wanted or (taken is not None and spelling != name):  # the first of two other spellings counts
                continue
            if taken is not None:  # it was only known by another spelling: now it has its own points
                self._targets = {
                    key: [target for target in targets if target[0] is not taken]
                    for key, targets in self._targets.items()
                }
            need = reduce(Need.both, wanted)
            window = self.windows[rank, spelling] = SeriesWindow(need)
            found.append((window, factor))
            self.version += 1
            if rank < 0 and rank not in self._machine:
                self._machine.append(rank)
            for pattern, how in self._ways:
                if rank >= 0 and bind(pattern, spelling) is not None:
                    combined = self._together.setdefault((how, spelling), CombinedSeries(SeriesWindow(need), how))
                    combined.members[rank] = window
        if found:
            self._logged.add(name)
        return found

    def _binds(self, pattern: str, name: str) -> bool:
        """Return whether a pattern matches a metric; `own` matches a limited number of them."""
        if bind(pattern, name) is None:
            return False
        if pattern == OWN and len(self._own) < MOST_OWN:
            self._own.add(name)
        return pattern != OWN or name in self._own

    def is_double(self, name: str, patterns: tuple[str, ...]) -> bool:
        """Return whether a rule with these patterns also evaluates the points of this name under a better name.

        The name that was logged is better; if both were, the canonical one.
        """
        if name in self._logged:
            better = {spelling for spelling, _ in _spellings(name)} - {name}
        else:
            better = {one for one in self._logged if any(spelling == name for spelling, _ in _spellings(one))}
        return any(bind(pattern, other) is not None for other in better & self._logged for pattern in patterns)

    def add(self, parts: PointsByMetric) -> None:
        """Add new points."""
        for key, several in parts.items():
            part = merged(several)
            for window, factor in self._targets.get(key, ()):
                value = part.value if factor == 1.0 else part.value * factor
                window.extend(part.step, part.time, value, part.axis)
        for combined in self._together.values():
            if (
                combined.how != EACH
                and len(combined.members) > 1
                and any(each.fresh for each in combined.members.values())
            ):
                combined.advance()

    def find(self, rank: int | None, name: str, how: str = EACH) -> SeriesWindow | None:
        """Return the series of a metric: of a rank, or of the machine if the rank has none; without a rank, of all."""
        combined = self._together.get((how, name)) if rank is None else None
        if combined is not None:
            alone = how == EACH or len(combined.members) == 1
            return combined.members[min(combined.members)] if alone else combined.window
        for each in (rank, *(() if rank is not None and rank < 0 else self._machine)):
            found = self.windows.get((each, name)) if each is not None else None
            if found is not None:
                return found
        return None

    def of_ranks(self, patterns: Iterable[str], how: str) -> dict[int, dict[str, SeriesWindow]]:
        """Return the series of some metrics by rank and name."""
        found: dict[int, dict[str, SeriesWindow]] = {}
        for pattern in patterns:
            names = (name for way, name in self._together if way == how and bind(pattern, name) is not None)
            for name in names:
                for rank, window in self._together[how, name].members.items():
                    found.setdefault(rank, {})[name] = window
        return found

    def mark_seen(self) -> None:
        """Mark all new points as seen."""
        for window in self.windows.values():
            window.fresh = 0
        for combined in self._together.values():
            combined.window.fresh = 0

    def forget(self, rank: int) -> None:
        """Forget a rank."""
        self.windows = {key: window for key, window in self.windows.items() if key[0] != rank}
        self._targets = {key: targets for key, targets in self._targets.items() if key[0] != rank}
        for combined in self._together.values():
            combined.members.pop(rank, None)
            combined.taken.pop(rank, None)
        self._together = {key: combined for key, combined in self._together.items() if combined.members}
        self.version += 1
