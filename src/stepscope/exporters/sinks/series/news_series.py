"""News about a run as values of series: its state, verdict, settings and alerts, for sinks that know only series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.exporters.prometheus.names import PREFIX, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.exporters.sinks.sink import AlertChange, RunFacts, RunNews

STATES = ("running", "finished", "failed", "killed", "oom-killed", "preempted", "interrupted", "lost")
MOST_SETTINGS = 30
"""Settings that are sent."""
MOST_TEXT = 500
"""Characters of a label's value."""
INFO = Target(f"{PREFIX}_run_info", "1; the labels describe the run.")
STATE = Target(f"{PREFIX}_run_state", "1 for the state that the run is in, 0 for the others.")
CONFIG = Target(f"{PREFIX}_run_config", "1; the labels are a setting of the run and its value.")
ALERT = Target(f"{PREFIX}_alert", "1 while an alert of this rule fires, 0 after that.")


class NewsValue(NamedTuple):
    """A value of a series about the run."""

    target: Target
    labels: dict[str, str]
    value: float
    order: int = 0
    """Of two values of one series the larger is the newer."""


class NewsBoard:
    """What is true of a run now. Remembers the alerts that fire: news names only those that have changed."""

    def __init__(self, run: RunFacts) -> None:
        self._run = run
        self._firing: dict[str, AlertChange] = {}

    def values(self, news: RunNews) -> list[NewsValue]:
        """Return all values as they are now; those of alerts that have changed more than once, one after the other."""
        run = self._run
        facts = {"name": run.name, "state": news.state, "host": run.host, "commit": run.commit, "page": run.page}
        found = [NewsValue(INFO, _cut({**facts, "verdict": news.verdict}), 1.0)]
        found += [NewsValue(STATE, {"state": state}, float(state == news.state)) for state in STATES]
        for setting, value in _settings(news.config or run.config):
            found.append(NewsValue(CONFIG, {"key": setting, "value": value}, 1.0))
        return found + self._alerts(news)

    def _alerts(self, news: RunNews) -> list[NewsValue]:
        changed: set[tuple[str, str]] = set()
        found: list[NewsValue] = []
        for order, alert in enumerate(news.alerts):
            if alert.state == "firing":
                self._firing[alert.id] = alert
            else:
                self._firing.pop(alert.id, None)
            changed.add((alert.rule, alert.severity))
            found.append(self._alert(alert.rule, alert.severity, order))
        going_on = {(alert.rule, alert.severity) for alert in self._firing.values()} - changed
        return found + [self._alert(rule, severity, 0) for rule, severity in sorted(going_on)]

    def _alert(self, rule: str, severity: str, order: int) -> NewsValue:
        fires = any((alert.rule, alert.severity) == (rule, severity) for alert in self._firing.values())
        return NewsValue(ALERT, _cut({"rule": rule, "severity": severity}), float(fires), order)


def _settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the first scalar settings at the top of a configuration, as texts."""
    scalars = ((str(key), value) for key, value in config.items() if isinstance(value, (str, int, float)))
    texts = ((key, str(value).lower() if isinstance(value, bool) else str(value)) for key, value in scalars)
    return [(key[:MOST_TEXT], text[:MOST_TEXT]) for key, text in texts if text][:MOST_SETTINGS]


def _cut(labels: dict[str, str]) -> dict[str, str]:
    return {label: value[:MOST_TEXT] for label, value in labels.items()}
