"""The alert engine of one run: takes rows, samples and events, returns changes of alerts.

It keeps rows as bytes until `evaluate`, which is called about once a second, decodes them together and evaluates every
rule on every new point. Samples of the machine wait longer if the rules that read them allow it. numpy is not loaded
before there are points to evaluate.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.alerts.evaluation import alert_text
from stepscope.alerts.evaluation.state import AlertTable, Point, Transition
from stepscope.alerts.rules.rule import CRITICAL
from stepscope.core.events import HANG_VERDICT, is_users
from stepscope.core.feed import Drained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.alerts.evaluation.job_facts import JobFacts
    from stepscope.alerts.evaluation.new_points import DelayedSamples, PointReader
    from stepscope.alerts.evaluation.rule_evaluator import RuleEvaluator
    from stepscope.alerts.evaluation.state import Alert
    from stepscope.alerts.rules.rule import Rule
    from stepscope.core.columns import SchemaTable

MOST_BYTES, MOST_EVENTS = 4 << 20, 10_000
"""Bytes of rows and number of events that wait for an evaluation; beyond that the oldest rows are dropped."""
MOMENT = 600.0
"""Seconds after which an event that no other event ends counts as over."""
OPTIONS = "alert_options"
"""Event of a callback that has its own thresholds."""
RUNNING = "running"
"""Event of a rank whose rows come again after its end."""


class _Event(NamedTuple):
    """An event on its way to the rules."""

    rank: int | None
    time: float
    fields: Mapping[str, Any]


class Engine:
    """Evaluates rules and keeps the states of their alerts."""

    def __init__(
        self, rules: Iterable[Rule], *, offset: float = 0.0, note: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start with nothing firing; `note` reports problems.

        `offset` is seconds since 1970 minus monotonic seconds, read once: setting the clock later does no harm.
        """
        self.rules = tuple(rule for rule in rules if rule.enabled)
        self._offset, self._note = offset, note
        self.alerts = AlertTable(self.rules)
        """The alerts; acknowledge and silence them here, with times in seconds since 1970."""
        self._by_kind: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for kind in {*rule.event, *rule.until}:
                self._by_kind.setdefault(kind, []).append(rule)
        self._pieces: list[Drained] = []
        self._bytes = 0
        self._samples: list[tuple[int, Mapping[str, float], float]] = []
        self._events: list[_Event] = []
        self._ended: set[int | None] = set()
        self._evaluator: RuleEvaluator | None = None
        self._reader: PointReader | None = None
        self._delayed: DelayedSamples | None = None
        self.urgent = False
        """Something has come that should be evaluated at once."""
        self.job: JobFacts | None = None
        """What is known of other nodes and of the machine; None if there is only this node."""
        self.unevaluated = 0
        """Bytes of rows that were dropped because they came faster than they could be evaluated."""

    def rows(self, rank: int, pieces: Iterable[bytes], table: SchemaTable, *, checked: bool = False) -> None:
        """Add drained records of a rank."""
        if rank in self._ended:
            self._ended.discard(rank)
            self.event({"kind": RUNNING}, rank)
        for data in pieces:
            self._pieces.append(Drained(rank, data, table, checked))
            self._bytes += len(data)
        while self._bytes > MOST_BYTES and len(self._pieces) > 1:
            lost = len(self._pieces.pop(0).data)
            self._bytes -= lost
            self.unevaluated += lost

    def sample(self, rank: int, values: Mapping[str, float], monotonic_ns: int) -> None:
        """Add a row that the watcher made itself; its rank is below 0, and it must not change from now on."""
        self._samples.append((rank, values, monotonic_ns / 1e9 + self._offset))

    def event(self, event: Mapping[str, Any], rank: int | None = None, monotonic_ns: int | None = None) -> None:
        """Add an event of the run; a rank below 0 stands for the machine."""
        kind = event.get("kind")
        if kind == "ended":
            self._ended.add(rank)
        if kind == OPTIONS:
            self._adapt(event)
        if not isinstance(kind, str) or kind not in self._by_kind or len(self._events) >= MOST_EVENTS:
            return
        moment = event.get("monotonic_ns", monotonic_ns)
        time = moment / 1e9 + self._offset if isinstance(moment, (int, float)) else float("nan")
        own = rank if rank is not None and rank >= 0 else None
        self._events.append(_Event(own, time, dict(event)))
        self.urgent = True

    def _adapt(self, options: Mapping[str, Any]) -> None:
        """Replace thresholds of the built-in rules by those that a callback of the training was given."""
        from stepscope.alerts.rules.builtin import rules
        from stepscope.alerts.rules.profiles import changes_of

        limits, off = changes_of(options)
        if not limits and not off & {rule.name for rule in self.rules}:
            return
        usual = {rule.name: rule.when for rule in rules()}
        other = {rule.name: rule.when for rule in rules(limits) if rule.when != usual[rule.name]}
        kept = [rule for rule in self.rules if rule.name not in off]
        self.rules = tuple(replace(rule, when=other.get(rule.name, rule.when)) for rule in kept)
        self.alerts.rules = {rule.name: rule for rule in self.rules}
        self._evaluator = self._reader = self._delayed = None  # windows start again, as the training does

    def evaluate(self, monotonic_ns: int, *, every: bool = False) -> list[Transition]:
        """Evaluate what is due, or `every` sample; return the changes in order."""
        now = monotonic_ns / 1e9 + self._offset
        self.urgent = False
        found: list[Transition] = []
        if self._pieces or self._samples or self._delayed is not None:
            found += self._evaluate_points(now, every=every)
        events, self._events = self._events, []
        for event in events:
            found += self._take(event._replace(time=event.time if event.time == event.time else now))
        found += self.alerts.tick(now)
        found += self._pass(now)
        return found

    def _evaluate_points(self, now: float, *, every: bool) -> list[Transition]:
        from stepscope.alerts.evaluation.new_points import DelayedSamples, PointReader
        from stepscope.alerts.evaluation.rule_evaluator import RuleEvaluator

        if self._evaluator is None or self._reader is None or self._delayed is None:
            self._evaluator = RuleEvaluator(self.rules, self.alerts, self._note)
            store = self._evaluator.store
            self._reader = PointReader(self._offset, store.wants)
            self._delayed = DelayedSamples(store.wants, store.patience)
        if self.job is not None:
            self._evaluator.job = self.job
        pieces, samples = self._pieces, self._samples
        self._pieces, self._samples, self._bytes = [], [], 0
        for sample in samples:
            self._delayed.add(*sample)
        parts = self._reader.read(pieces, self._delayed.due(now, every=every))
        return self._evaluator.take(parts) if parts else []

    def _take(self, event: _Event) -> list[Transition]:
        """Evaluate the rules on one event."""
        found = []
        kind = event.fields["kind"]
        for rule in self._by_kind[kind]:
            if kind in rule.event and all(event.fields.get(key) in allowed for key, allowed in rule.where.items()):
                found += self._happened(rule, event)
            elif kind in rule.until:
                ends = [alert for alert in self.alerts.alerts.values() if _is_ended(alert, rule, event)]
                why = str(event.fields.get("why") or kind.replace("_", " "))
                found += self.alerts.resolve(ends, event.time, why)
        return found

    def _happened(self, rule: Rule, event: _Event) -> list[Transition]:
        key = ",".join(f"{name}={event.fields.get(name)}" for name in rule.same)
        labels = {**rule.labels, "event": str(event.fields["kind"])}
        labels |= {name: str(event.fields[name]) for name in rule.same if name in event.fields}
        if event.rank is not None:
            labels["rank"] = str(event.rank)
        alert = self.alerts.alert(rule, key, event.rank, labels)
        step = event.fields.get("step")
        point = Point(event.time, step if isinstance(step, int) and step >= 0 else None, holds=True)
        words = partial(alert_text.of_event, rule, event.fields, event.rank)
        change = self.alerts.see_point(alert, point, words)
        if change is None and event.fields["kind"] == HANG_VERDICT and alert.is_active:  # the verdict has changed
            change = alert.turn(alert.state, event.time, words())
        return [] if change is None else [change]

    def _pass(self, now: float) -> list[Transition]:
        """Resolve alerts on events that no other event ends, some time after they fired."""
        over = [
            alert
            for alert in self.alerts.alerts.values()
            if alert.is_active
            and alert.rule.event
            and not alert.rule.until
            and alert.fired is not None
            and now - alert.fired >= (alert.rule.keep.size or MOMENT)
        ]
        return self.alerts.resolve(over, now, "it has not happened again", quiet=True)

    def end(self, rank: int, monotonic_ns: int) -> list[Transition]:
        """Forget a rank that has ended; its active alerts are marked as active until the end."""
        found = self.evaluate(monotonic_ns, every=True)
        if self._evaluator is not None:
            found += self.alerts.cut_off(self._evaluator.forget(rank), monotonic_ns / 1e9 + self._offset)
        return found

    def close(self, monotonic_ns: int) -> list[Transition]:
        """Mark alerts that are active at the end of the run, and resolve those on events; ends of ranks stay."""
        found = self.evaluate(monotonic_ns, every=True)
        now = monotonic_ns / 1e9 + self._offset
        alerts = list(self.alerts.alerts.values())
        found += self.alerts.cut_off([alert for alert in alerts if not alert.rule.event], now)
        events = [alert for alert in alerts if alert.rule.event and "ended" not in alert.rule.event]
        return found + self.alerts.resolve(events, now, "the run is over", quiet=True)

    def critical(self) -> str:
        """Return the text of the newest active critical alert on values; "" for none."""
        grave = [alert for alert in self.active() if not alert.rule.event and alert.latest.severity == CRITICAL]
        return grave[0].latest.text if grave else ""

    def restore(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Continue where an earlier watcher of this run stopped, from the events that it wrote."""
        events = list(events)
        self.alerts.restore(events)
        self._ended |= {event.get("rank") for event in events if event.get("kind") == "ended" and not is_users(event)}

    def active(self) -> list[Alert]:
        """Return the active alerts, the newest first."""
        active = [alert for alert in self.alerts.alerts.values() if alert.is_active]
        return sorted(active, key=lambda alert: -(alert.fired or 0.0))

    def costs(self) -> dict[str, float]:
        """Return the CPU seconds that each rule has taken."""
        return dict(self._evaluator.seconds) if self._evaluator is not None else {}


def _is_ended(alert: Alert, rule: Rule, event: _Event) -> bool:
    if alert.rule is not rule or not alert.is_active or (alert.rank != event.rank and alert.rank is not None):
        return False
    return all(alert.labels.get(name) == str(event.fields.get(name)) for name in rule.same if name in alert.labels)
