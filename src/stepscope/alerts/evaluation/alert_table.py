"""All alerts of a run: their states and silences, and how they are restored after a restart."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.alerts.evaluation.history import alerts_of
from stepscope.alerts.evaluation.state import ACKNOWLEDGED, ACTIVE, AT_END, FIRING, RESOLVED, SILENCED, Alert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from stepscope.alerts.evaluation.state import AlertText, Point, Silence, Transition
    from stepscope.alerts.rules.rule import Rule

Key = tuple[str, str, int | None]
"""Rule, key of the alert, rank."""
MOST_ALERTS = 20_000
"""Maximum number of alerts; more come from a rule on names without a bound."""


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
            alert.turn(RESOLVED, now, alert.latest._replace(text=f"{alert.latest.text}; {why}"), quiet=quiet)
            for alert in alerts
            if alert.is_active
        ]
