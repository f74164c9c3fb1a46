"""Evaluate the alert rules of a program, which are functions of a step's metrics, in a thread."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from stepscope.alerts.rules.callables import CallableRules
from stepscope.core.errors import StepscopeError
from stepscope.core.names import UNSAFE
from stepscope.recorder.complaints import Complaints, tell
from stepscope.trackers.work_queue import Worklist

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_WAITING = 1000
"""Steps that may wait for evaluation; of more, the oldest are dropped and counted."""
MOST_KEPT = 1000
SECONDS = 1.0
"""How long one rule may take; the training does not wait for it."""


class AlertSystem:
    """Evaluate rules on every step. It never raises into the training or makes it wait.

    An alert is printed, kept in `alerts`, and recorded as an event of the run, whose watcher notifies the channels.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        notices: Complaints | None = None,
        record: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Begin without rules; `notices` reports problems with them, `record` is called with each alert event."""
        self.enabled = bool(enabled)
        self._notices = notices or Complaints()
        self._record = record
        self._rules = CallableRules(note=lambda text: self._notices.say(text, text), seconds=SECONDS)
        self._steps = Worklist(self._evaluate, name="stepscope-alerts", most=MOST_WAITING)
        self.skipped = 0
        """Steps that were not evaluated because the rules take longer than the steps."""
        self.alerts: deque[dict[str, Any]] = deque(maxlen=MOST_KEPT)
        """Firing and resolved alerts, oldest first."""

    def add_alert_rule(
        self,
        name: str,
        condition: Callable[[Any], Any] | None = None,
        severity: str = "warning",
        message: str = "",
        cooldown_seconds: float = 0.0,
        remedy: str = "",
    ) -> bool:
        """Add a rule, or replace the one of that name; return whether it was accepted.

        `condition` takes the metrics of a step (`metrics.loss`) and returns whether to alert. `severity` is info,
        warning or critical. `message` is a template such as "Loss spike detected: {loss:.2f}"; an unknown placeholder
        is kept. The rule does not fire again within `cooldown_seconds`.
        """
        try:
            self._rules.add(name, condition, severity, message, cooldown_seconds, remedy)  # type: ignore[arg-type]
        except (StepscopeError, TypeError, ValueError) as error:
            text = f"cannot add alert rule {name!r}: {getattr(error, 'cause', error)}; see docs/reference/alerts.md"
            self._notices.say(f"rule {name}", text)
            return False
        return True

    def rules(self) -> list[str]:
        """Return the names of the rules."""
        return self._rules.names()

    def disabled(self) -> dict[str, str]:
        """Return the rules that are off because they raised, hung or returned an invalid value, with the reason."""
        return self._rules.disabled()

    def active(self) -> list[dict[str, Any]]:
        """Return the alerts that are firing."""
        latest = {row["rule"]: row for row in list(self.alerts)}
        return [row for row in latest.values() if row["state"] == "firing"]

    def check(self, metrics: Any) -> None:
        """Queue a step for evaluation and return at once; `metrics` is a mapping, or has `to_dict`."""
        if self.enabled and self._rules.names():
            self.skipped += not self._steps.add(metrics)

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until every step was evaluated, at most so many seconds; return whether that is so."""
        return self._steps.flush(seconds)

    def _evaluate(self, metrics: Any) -> None:
        with self._notices.shield("evaluate", "evaluate alert rules"):
            values: Mapping[str, Any] = metrics.to_dict() if hasattr(metrics, "to_dict") else metrics
            for change in self._rules.check(values):
                event = change.event()
                self.alerts.append(event)
                if change.notifies and change.state == "firing":
                    tell(UNSAFE.sub(" ", f"ALERT {change.severity}: {change.text}"))
                if self._record is not None:
                    self._record(event)
