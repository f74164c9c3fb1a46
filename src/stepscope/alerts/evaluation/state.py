"""The alerts of a run: the state of each (pending, firing, acknowledged, silenced, resolved), and its changes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.alerts.evaluation.history import alerts_of
from stepscope.alerts.rules.expression import STEPS, TIME, RuleWindow
from stepscope.alerts.rules.rule import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.alerts.rules.rule import Rule

INACTIVE, PENDING, FIRING = "inactive", "pending", "firing"
ACKNOWLEDGED, SILENCED, RESOLVED = "acknowledged", "silenced", "resolved"
ACTIVE = (FIRING, ACKNOWLEDGED, SILENCED)
AT_END = "; still so at the end"
"""Appended to the text of an alert that was active when the run, or its rank, ended."""
Key = tuple[str, str, int | None]
"""Rule, key of the alert, rank."""
MOST_ALERTS = 20_000
"""Maximum number of alerts; more come from a rule on names without a bound."""


@dataclass(frozen=True)
class Transition:
    """One change of an alert's state, with its evidence."""

    alert: str
    """The alert's id, the same for all changes of one occurrence."""
    rule: str
    state: str
    severity: str
    text: str
    remedy: str
    labels: Mapping[str, str]
    evidence: Mapping[str, Any]
    rank: int | None
    """None: the machine."""
    step: int | None
    time: float
    """Seconds since 1970."""
    key: str = ""
    """Tells it from other alerts of its rule: `gpu/0/temperature_celsius`, rank 3."""
    previous: str = ""
    """State before; firing for an escalation."""
    actions: tuple[Any, ...] = ()
    """Actions to take; only when it begins to fire."""
    quiet: bool = False
    """Nothing is sent: the run is over, or another node sends it."""

    @property
    def notifies(self) -> bool:
        """Whether people are notified of it."""
        is_over = self.state == RESOLVED and self.previous in {FIRING, ACKNOWLEDGED}
        return not self.quiet and (self.state == FIRING or is_over)

    def event(self) -> dict[str, Any]:
        """Return the change as an event of the run."""
        found: dict[str, Any] = {"kind": "alert", "alert": self.alert, "rule": self.rule, "state": self.state}
        found |= {"severity": self.severity, "text": self.text, "remedy": self.remedy, "key": self.key}
        found |= {"labels": dict(self.labels), "evidence": dict(self.evidence), "previous": self.previous}
        return {**found, "rank": self.rank, "step": self.step, "time": self.time}


class Point(NamedTuple):
    """One point at which a condition was evaluated."""

    time: float
    step: int | None
    holds: bool | None
    """None: unknown."""
    cleared: bool | None = None
    """Whether the condition that resolves the alert holds; None if unknown."""


class AlertText(NamedTuple):
    """The text of an alert at one point."""

    text: str
    remedy: str
    severity: str
    evidence: Mapping[str, Any]


NOTHING = AlertText("", "", "", {})


class Silence(NamedTuple):
    """Alerts that are not sent: those whose rule and labels match."""

    match: Mapping[str, str]
    until: float | None = None
    """Seconds since 1970; None for until it is lifted."""

    def covers(self, rule: str, labels: Mapping[str, str], now: float) -> bool:
        """Return whether it covers an alert."""
        from fnmatch import fnmatchcase

        if self.until is not None and now >= self.until:
            return False
        facts = {**labels, "rule": rule}
        return all(fnmatchcase(facts.get(key, ""), pattern) for key, pattern in self.match.items())


@dataclass
class Alert:
    """The state of a rule for one series, GPU or rank."""

    rule: Rule
    key: str
    rank: int | None
    labels: Mapping[str, str] = field(default_factory=dict)
    state: str = INACTIVE
    id: str = ""
    since: Point | None = None
    """Where the condition began to hold."""
    count: int = 0
    """Points since then."""
    clear_since: Point | None = None
    clear_count: int = 0
    fired: float | None = None
    """When it last fired; seconds since 1970."""
    latest: AlertText = NOTHING
    """The latest text."""
    step: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether it fires, even if it is acknowledged or silenced."""
        return self.state in ACTIVE

    def see(self, point: Point) -> str:
        """Process one evaluated point; return what is due: "fire", "resolve" or ""."""
        if point.holds:
            self.clear_since, self.clear_count = None, 0
            if self.is_active:
                return ""
            if self.state != PENDING:
                self.state, self.since, self.count = PENDING, point, 0
            self.count += 1
            return "fire" if self._may_fire(point) else ""
        if self.state == PENDING and point.holds is not None:
            self.state, self.since, self.count = INACTIVE, None, 0
        if not self.is_active or not point.cleared:
            if self.is_active and point.cleared is False:
                self.clear_since, self.clear_count = None, 0
            return ""
        if self.clear_since is None:
            self.clear_since, self.clear_count = point, 0
        self.clear_count += 1
        return "resolve" if lasted(self.rule.keep, self.clear_since, point, self.clear_count) else ""

    def _may_fire(self, point: Point) -> bool:
        has_cooled = self.fired is None or point.time - self.fired >= self.rule.cooldown
        return has_cooled and self.since is not None and lasted(self.rule.lasting, self.since, point, self.count)

    def fire(self, point: Point, words: AlertText, *, silenced: bool) -> Transition:
        """Begin to fire."""
        seed = f"{self.rule.name}|{self.key}|{self.rank}|{point.time:.6f}"
        self.id = f"{self.rule.name}-{hashlib.blake2b(seed.encode(), digest_size=4).hexdigest()}"
        self.fired, self.latest, self.step = point.time, words, point.step
        self.clear_since, self.clear_count = None, 0
        return self.turn(SILENCED if silenced else FIRING, point.time, previous="")

    def turn(
        self,
        state: str,
        now: float,
        words: AlertText | None = None,
        previous: str | None = None,
        *,
        quiet: bool = False,
    ) -> Transition:
        """Change the state; return the transition."""
        before = self.state if previous is None else previous
        self.latest = words or self.latest
        starts = state == FIRING and before != FIRING
        self.state = state
        change = Transition(
            alert=self.id,
            rule=self.rule.name,
            state=state,
            severity=self.latest.severity,
            text=self.latest.text,
            remedy=self.latest.remedy,
            labels=dict(self.labels),
            evidence=dict(self.latest.evidence),
            rank=self.rank,
            step=self.step,
            time=now,
            key=self.key,
            previous=before,
            actions=self.rule.actions if starts else (),
            quiet=quiet,
        )
        if state == RESOLVED:
            self.state, self.since, self.count, self.clear_since, self.clear_count = INACTIVE, None, 0, None, 0
        return change

    def escalate(self, now: float) -> Transition | None:
        """Fire again with a higher severity if nobody has acknowledged it in time."""
        plan = self.rule.escalate
        if plan is None or self.state != FIRING or self.fired is None or now - self.fired < plan.after:
            return None
        if SEVERITIES.index(plan.severity) <= SEVERITIES.index(self.latest.severity):
            return None
        minutes = (now - self.fired) / 60
        text = f"{self.latest.text} (for {minutes:.0f} min, not acknowledged)"
        return self.turn(FIRING, now, self.latest._replace(severity=plan.severity, text=text))

    def restore(self, row: Mapping[str, Any]) -> None:
        """Continue from a row of the history."""
        self.state, self.id, self.fired, self.step = row["state"], row["alert"], row["since"], row.get("step")
        text = str(row["text"]).removesuffix(AT_END)  # it is still active
        self.latest = AlertText(text, str(row["remedy"]), str(row["severity"]), row["evidence"])


def lasted(span: RuleWindow, since: Point, now: Point, count: int) -> bool:
    """Return whether a condition has held for as long as a rule demands."""
    if not span.size:
        return True
    if span.unit == TIME:
        return now.time - since.time >= span.size - 1e-6
    if span.unit == STEPS and now.step is not None and since.step is not None:
        return now.step - since.step >= span.size
    return count > span.size if span.unit == STEPS else count >= span.size


class AlertTable:
    """Holds an alert for every series, event and rank that a rule watches."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Start with nothing firing."""
        self.rules = {rule.name: rule for rule in rules}
        self.alerts: dict[Key, Alert] = {}
        self.silences: list[Silence] = []

    def alert(self, rule: Rule, key: str, rank: int | None, labels: Mapping[str, str]) -> Alert:
        """Return the alert of one series, event or rank; a new one is inactive."""
        found = self.alerts.get((rule.name, key, rank))
        if found is not None:
            found.rule = rule  # its thresholds may have changed
        else:
            found = Alert(rule, key, rank, labels)
            if len(self.alerts) < MOST_ALERTS:
                self.alerts[rule.name, key, rank] = found
        return found

    def see(self, alert: Alert, points: Iterable[Point], words: Callable[[int], AlertText]) -> list[Transition]:
        """Process evaluated points in order; `words` returns the text for the n-th of them."""
        found = (self.see_point(alert, point, partial(words, number)) for number, point in enumerate(points))
        return [change for change in found if change is not None]

    def see_point(self, alert: Alert, point: Point, words: Callable[[], AlertText]) -> Transition | None:
        """Process one evaluated point; return the change that it causes."""
        due = alert.see(point)
        if due == "fire":
            return alert.fire(point, words(), silenced=self._is_silenced(alert, point.time))
        return alert.turn(RESOLVED, point.time) if due == "resolve" else None

    def _is_silenced(self, alert: Alert, now: float) -> bool:
        return any(silence.covers(alert.rule.name, alert.labels, now) for silence in self.silences)

    def tick(self, now: float) -> list[Transition]:
        """End silences and escalate alerts whose time has come."""
        found = []
        if self.silences:
            self.silences = [each for each in self.silences if each.until is None or now < each.until]
            found += self._end_silence(now)
        escalated = (alert.escalate(now) for alert in self.alerts.values() if alert.rule.escalate is not None)
        return found + [change for change in escalated if change is not None]

    def _end_silence(self, now: float) -> list[Transition]:
        """Let alerts fire again that no silence covers any more."""
        silenced = [alert for alert in self.alerts.values() if alert.state == SILENCED]
        return [alert.turn(FIRING, now) for alert in silenced if not self._is_silenced(alert, now)]

    def acknowledge(self, which: str, by: str, now: float) -> list[Transition]:
        """Acknowledge alerts; `which` is the id of an alert or the name of a rule."""
        found = []
        for alert in self.alerts.values():
            if alert.state in {FIRING, SILENCED} and which in {alert.id, alert.rule.name}:
                evidence = {**alert.latest.evidence, "acknowledged_by": by} if by else alert.latest.evidence
                found.append(alert.turn(ACKNOWLEDGED, now, alert.latest._replace(evidence=evidence)))
        return found

    def silence(self, silence: Silence, now: float) -> list[Transition]:
        """Silence matching alerts from now on."""
        self.silences.append(silence)
        return [
            alert.turn(SILENCED, now)
            for alert in self.alerts.values()
            if alert.state == FIRING and silence.covers(alert.rule.name, alert.labels, now)
        ]

    def unsilence(self, match: Mapping[str, str], now: float) -> list[Transition]:
        """Lift a silence; alerts that still fire are sent."""
        self.silences = [each for each in self.silences if dict(each.match) != dict(match)]
        return self._end_silence(now)

    def restore(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Restore active alerts, and the cooldown of resolved ones, from the events of the run."""
        for row in reversed(alerts_of(events)):
            rule = self.rules.get(row["rule"])
            if rule is None:
                continue
            rank = row["rank"] if isinstance(row["rank"], int) and row["rank"] >= 0 else None
            alert = self.alert(rule, row["key"], rank, row["labels"])
            if row["state"] in ACTIVE:
                alert.restore(row)
            else:
                alert.fired = max(alert.fired or 0.0, row["since"])

    def cut_off(self, alerts: Iterable[Alert], now: float) -> list[Transition]:
        """Mark active alerts as active until the end; nothing is sent again."""
        return [
            alert.turn(alert.state, now, alert.latest._replace(text=alert.latest.text + AT_END), quiet=True)
            for alert in alerts
            if alert.is_active and not alert.latest.text.endswith(AT_END)
        ]

    def resolve(self, alerts: Iterable[Alert], now: float, why: str, *, quiet: bool = False) -> list[Transition]:
        """Resolve active alerts, regardless of their condition."""
        return [
            alert.turn(RESOLVED, now, alert.latest._replace(text=_joined(alert.latest.text, why)), quiet=quiet)
            for alert in alerts
            if alert.is_active
        ]


def _joined(text: str, why: str) -> str:
    """Return a text with what came of it; the text may be a whole sentence."""
    return f"{text.rstrip('.')}; {why}"
