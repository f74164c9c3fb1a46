"""Evaluate the rules on new points: conditions for many series together, detectors one by one."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stepscope.alerts.evaluation import alert_text
from stepscope.alerts.evaluation.conditions import EvaluationFrame, Stack, evaluate
from stepscope.alerts.evaluation.detectors import DETECTORS, DetectorInput
from stepscope.alerts.evaluation.job_facts import JobFacts
from stepscope.alerts.evaluation.series_store import SeriesStore, bind, fill_in, needs_of
from stepscope.alerts.evaluation.series_window import Need
from stepscope.alerts.evaluation.state import INACTIVE, Alert, AlertText, Point
from stepscope.alerts.rules.expression import CallNode, Node, walk
from stepscope.alerts.rules.rule import EACH, VALUE
from stepscope.core.errors import in_words
from stepscope.core.walls import wall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stepscope.alerts.evaluation.new_points import PointsByMetric
    from stepscope.alerts.evaluation.series_window import SeriesWindow
    from stepscope.alerts.evaluation.state import AlertTable, Transition
    from stepscope.alerts.rules.rule import Rule

STRIKES = 3
"""Failures after which a rule is disabled."""
UNBOUNDED = {"highest", "lowest"}
"""Functions of all points since the run started."""
MOST_INSTANCES = 2000
"""Maximum series of one rule."""


@dataclass
class RuleInstance:
    """One series, or set of series, that a rule is evaluated on."""

    rule: Rule
    name: str
    """Name of the driving metric, whose points are evaluated."""
    rank: int | None
    binding: tuple[str, ...]
    alert: Alert
    memory: dict[str, Any] = field(default_factory=dict)
    frozen: dict[CallNode, float] = field(default_factory=dict)
    found: dict[str, SeriesWindow | None] = field(default_factory=dict)
    """The series by the rule's names for them."""
    driving: SeriesWindow | None = None
    """The series whose points are evaluated."""
    version: int = -1

    def find_series(self, store: SeriesStore) -> SeriesWindow | None:
        """Find the series, some of which are new; return the one whose points are evaluated."""
        self.version = store.version
        if store.is_double(self.name, patterns_of(self.rule)):  # a series is evaluated once, under any of its names
            self.driving = None
            return None
        named = self.rule.metrics if not self.rule.detect else DETECTORS[self.rule.detect].others
        full = {name: self.name if name == VALUE else fill_in(name, self.binding) for name in named}
        self.found = {name: store.find(self.rank, each, self.rule.over) for name, each in full.items()}
        self.driving = self.found[self.driver] = store.find(self.rank, self.name, self.rule.over)
        return self.driving

    @property
    def driver(self) -> str:
        """The rule's name for the series whose points are evaluated."""
        return self.name if self.rule.detect else self.rule.metrics[0]

    def facts(self, step: float) -> dict[str, Any]:
        """Return the fields for the alert text at a step; NaN for none."""
        instance = self.binding[0] if self.binding else self.name
        at = None if np.isnan(step) else int(step)
        return {"metric": self.name, "rank": self.alert.rank, "step": at, "instance": instance}


def patterns_of(rule: Rule) -> tuple[str, ...]:
    """Return the patterns of the series whose points a rule evaluates: its own, or its detector's."""
    if rule.detect:
        return rule.metric or DETECTORS[rule.detect].metric
    return rule.metric if rule.metrics[0] == VALUE else rule.metrics[:1]


def labels_of(rule: Rule, name: str, rank: int | None) -> dict[str, str]:
    """Return the labels of an alert: the rule's, the metric, the rank, the GPU."""
    found = {**rule.labels, "metric": name}
    parts = name.split("/")
    if parts[0] in {"gpu", "process"} and len(parts) > 2:
        found[{"gpu": "gpu", "process": "rank"}[parts[0]]] = parts[1]
    return found if rank is None else {**found, "rank": str(rank)}


def reach_of(rule: Rule) -> Need | None:
    """Return how far before the new points a rule reads; None for as far as possible."""
    needs = list(needs_of(rule).values())
    parts = walk(rule.condition) if rule.condition is not None else ()
    is_unbounded = any(isinstance(part, CallNode) and part.name in UNBOUNDED for part in parts)
    if rule.detect or is_unbounded or any(need.steps for need in needs):
        return None
    points = 1 << max(need.points for need in needs).bit_length()  # rounded up, so that rules can share a stack
    return Need(points, max(need.seconds for need in needs))


def holding(node: Node, frame: EvaluationFrame) -> Any:
    """Return the value of a condition at each new point, in full shape: rows by points."""
    found, shape = evaluate(node, frame), (frame.rows, frame.fresh)
    return found if found.shape == shape else np.broadcast_to(found, shape)


class RuleEvaluator:
    """Holds the series and evaluates every rule on new points."""

    def __init__(self, rules: Iterable[Rule], alerts: AlertTable, note: Callable[[str], None]) -> None:
        """Prepare for rules on metrics; the engine handles rules on events."""
        self._rules = [rule for rule in rules if rule.enabled and not rule.event]
        self.store = SeriesStore(self._rules)
        self._alerts, self._note = alerts, note
        self._instances: dict[str, dict[tuple[int | None, str], RuleInstance]] = {rule.name: {} for rule in self._rules}
        self._met: set[tuple[int, str]] = set()
        self._strikes: dict[str, int] = {}
        self._reach = {rule.name: reach_of(rule) for rule in self._rules}
        self._stacks: dict[tuple[Any, ...], Stack] = {}
        self.seconds: dict[str, float] = {}
        """CPU time of each rule, in seconds."""
        self.job = JobFacts()
        """What detectors that compare ranks know beyond the series."""

    def take(self, parts: PointsByMetric) -> list[Transition]:
        """Add new points and evaluate them."""
        self.store.add(parts)
        for key in self.store.windows.keys() - self._met:
            self._met.add(key)
            self._meet(*key)
        found = []
        for rule in self._rules:
            fresh = self._fresh(rule)
            if not fresh:
                continue
            began = time.thread_time()
            with wall(partial(self._strike, rule)):  # a rule that fails must not stop the others
                found += self._evaluate(rule, fresh)
            self.seconds[rule.name] = self.seconds.get(rule.name, 0.0) + time.thread_time() - began
        self.store.mark_seen()
        self._stacks = {}
        return found

    def _strike(self, rule: Rule, error: Exception) -> None:
        self._strikes[rule.name] = self._strikes.get(rule.name, 0) + 1
        if self._strikes[rule.name] == STRIKES:
            self._note(f"alert rule '{rule.name}' failed {STRIKES} times and is off: {in_words(error)}")

    def _meet(self, rank: int, name: str) -> None:
        """Create the rule instances that a new series drives."""
        for rule in self._rules:
            instances = self._instances[rule.name]
            bindings = (bind(each, name) for each in patterns_of(rule))
            binding = next((found for found in bindings if found is not None), None)
            alone = rule.over == EACH and not (rule.detect and DETECTORS[rule.detect].across)
            place = rank if alone else None
            if binding is None or len(instances) >= MOST_INSTANCES or (place, name) in instances:
                continue
            own = rank if alone and rank >= 0 else None
            alert = self._alerts.alert(rule, name, own, labels_of(rule, name, own))
            instances[place, name] = RuleInstance(rule, name, place, binding, alert)

    def forget(self, rank: int) -> list[Alert]:
        """Delete a rank's series; return its alerts."""
        gone = []
        for instances in self._instances.values():
            gone += [instances.pop(key).alert for key in list(instances) if key[0] == rank]
        self._met = {key for key in self._met if key[0] != rank}
        self.store.forget(rank)
        return gone

    def _fresh(self, rule: Rule) -> list[tuple[RuleInstance, SeriesWindow]]:
        """Return the instances of a rule that have new points, with the series that has them."""
        if self._strikes.get(rule.name, 0) >= STRIKES:
            return []
        found = []
        for instance in self._instances[rule.name].values():
            driver = instance.driving if instance.version == self.store.version else instance.find_series(self.store)
            if driver is not None and driver.fresh:
                found.append((instance, driver))
        return found

    def _evaluate(self, rule: Rule, fresh: list[tuple[RuleInstance, SeriesWindow]]) -> list[Transition]:
        groups: dict[tuple[Any, ...], list[RuleInstance]] = {}
        found: list[Transition] = []
        for instance, driver in fresh:
            if rule.detect:
                found += self._detect(instance, driver)
            else:
                series = instance.found.values()
                shape = tuple((each.axis, len(each)) if each is not None else None for each in series)
                groups.setdefault((driver.fresh, *shape), []).append(instance)
        for instances in groups.values():
            found += self._compare(rule, instances)
        return found

    def _compare(self, rule: Rule, instances: list[RuleInstance]) -> list[Transition]:
        """Evaluate a condition on series with the same times."""
        if rule.condition is None:
            return []
        frame = self._frame(instances)
        frame.lazy = all(instance.alert.state == INACTIVE for instance in instances)
        truth = holding(rule.condition, frame)
        rises = (truth == 1.0).any(axis=1)
        found: list[Transition] = []
        if frame.lazy:
            if not rises.any():
                return found  # the usual case
            frame.lazy = False
            truth = holding(rule.condition, frame)
        clear = None if rule.clearing is None else holding(rule.clearing, frame)
        for row, instance in enumerate(instances):
            if not rises[row] and instance.alert.state == INACTIVE:
                continue
            if frame.baselines:
                found += self._follow(instance, frame if len(instances) == 1 else self._frame([instance]))
                continue
            points = self._points(frame, truth[row], None if clear is None else clear[row], instance)
            found += self._alerts.see(instance.alert, points, partial(self._say, instance, frame, row))
        return found

    def _follow(self, instance: RuleInstance, frame: EvaluationFrame) -> list[Transition]:
        """Evaluate one series, again after every change: its baselines are frozen while its alert fires."""
        found: list[Transition] = []
        start = 0
        while start < frame.fresh:
            truth, clear = (
                None if node is None else holding(node, frame)[0]
                for node in (instance.rule.condition, instance.rule.clearing)
            )
            points = self._points(frame, truth, clear, instance)
            for at in range(start, frame.fresh):
                words = partial(self._say, instance, frame, 0, at)
                change = self._alerts.see_point(instance.alert, points[at], words)
                start = at + 1
                if change is not None:
                    found.append(change)
                    self._freeze(instance, frame, at)
                    break
        return found

    def _frame(self, instances: list[RuleInstance]) -> EvaluationFrame:
        first = instances[0]
        stacks: dict[str, Stack | None] = {}
        driver = cast("SeriesWindow", first.found[first.driver])  # it has new points
        fresh = min(driver.fresh, len(driver))
        for name, window in first.found.items():
            windows = [found for one in instances if (found := one.found[name]) is not None]
            most = None if window is None else self._most(first.rule, window, fresh)
            stacks[name] = None if window is None else self._stack(windows, most)
        return EvaluationFrame(stacks, first.driver, fresh, [one.frozen for one in instances])

    def _most(self, rule: Rule, window: SeriesWindow, fresh: int) -> int | None:
        """Return how many of the last points a rule reads; None for all."""
        reach = self._reach[rule.name]
        if reach is None:
            return None
        new = max(fresh, window.fresh)
        if not reach.seconds or new >= len(window):
            return reach.points + new
        since = float(window.time[-1 - new]) - reach.seconds
        return max(reach.points + new, len(window) - int(np.searchsorted(window.time, since)))

    def _stack(self, windows: list[SeriesWindow], most: int | None) -> Stack:
        """Stack series; several rules read the same ones."""
        key = (most, len(windows), id(windows[0]), id(windows[-1]))
        found = self._stacks.get(key)
        if found is None or found.windows != windows:
            found = self._stacks[key] = Stack.of(windows, most)
        return found

    def _points(self, frame: EvaluationFrame, truth: Any, clear: Any, instance: RuleInstance) -> list[Point]:
        """Return the evaluated points of one series, from the first that changes a state."""
        times, steps = (axis[-frame.fresh :].tolist() for axis in (frame.driving.time, frame.driving.step))
        skip = int(np.argmax(truth == 1.0)) if instance.alert.state == INACTIVE else 0
        cleared = (truth == 0.0) if clear is None else (clear == 1.0)
        return [
            Point(
                times[at],
                None if steps[at] != steps[at] else int(steps[at]),
                None if truth[at] != truth[at] else bool(truth[at]),
                bool(cleared[at]),
            )
            if at >= skip
            else Point(times[at], None, None, None)
            for at in range(frame.fresh)
        ]

    def _freeze(self, instance: RuleInstance, frame: EvaluationFrame, at: int) -> None:
        """Freeze the baselines while the alert fires, so that the values it is about do not move them."""
        instance.frozen.clear()
        if instance.alert.is_active:
            values = {call: float(found[0, at]) for call, found in frame.baselines.items()}
            instance.frozen.update({call: value for call, value in values.items() if np.isfinite(value)})

    def _say(self, instance: RuleInstance, frame: EvaluationFrame, row: int, at: int) -> AlertText:
        """Return the alert text for a point."""
        rule, stack = instance.rule, frame.driving
        names = {name: fill_in(name, instance.binding) for name in instance.found}
        names[instance.driver] = instance.name
        values = {}
        for name, each in frame.stacks.items():
            high = 0 if each is None else int(frame.ends(each)[at])
            if each is not None and high:
                values[names[name]] = float(each.value[row, high - 1])
        step = stack.step[len(stack.time) - frame.fresh + at]
        comparison = alert_text.deciding(rule.condition) if rule.condition is not None else None
        sides, unit = None, ""
        if comparison is not None:
            left, right = (float(holding(side, frame)[row, at]) for side in comparison.operands)
            sides, unit = (left, right), alert_text.unit_in(comparison.operands[0], names)
        return alert_text.of_condition(rule, instance.facts(step), values, sides, unit)

    def _detect(self, instance: RuleInstance, driver: SeriesWindow) -> list[Transition]:
        """Run a detector on one series."""
        rule = instance.rule
        detector = DETECTORS[rule.detect]
        others = {name: window for name, window in instance.found.items() if name != instance.name}
        ranks = self.store.of_ranks((instance.name, *detector.others), rule.over) if detector.across else {}
        options = {**detector.options, **rule.options}
        scene = DetectorInput(instance.name, driver, others, options, instance.memory, ranks, self.job)
        signs = detector.look(scene)
        facts = [instance.facts(driver.step[sign.at]) for sign in signs]
        points = [
            Point(float(driver.time[sign.at]), fact["step"], sign.holds, not sign.holds)
            for sign, fact in zip(signs, facts, strict=True)
        ]

        def say(number: int) -> AlertText:
            finding = signs[number].finding
            if finding is None:
                return AlertText(rule.name, rule.remedy, rule.severity, {"metric": instance.name})
            return alert_text.of_finding(rule, facts[number], finding)

        return self._alerts.see(instance.alert, points, say)
