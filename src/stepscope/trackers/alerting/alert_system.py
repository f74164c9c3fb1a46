"""Rules that a program adds to its own training: functions of a step's metrics, evaluated in a thread."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from stepscope.alerts.rules.callables import CallableRules
from stepscope.core.errors import StepscopeError
from stepscope.core.names import UNSAFE
from stepscope.recorder.complaints import Complaints, tell
from stepscope.trackers.worklist import Worklist

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.alerts.evaluation.state import Transition

MOST_WAITING = 1000
"""Steps that wait to be looked at; beyond, the oldest are left out and counted."""
MOST_KEPT = 1000
SECONDS = 1.0
"""How long one rule may take: the training does not wait for it."""


class AlertSystem:
    """Evaluate rules on every step. Nothing it does raises into the training or keeps it waiting.

    What fires is printed, kept in `alerts`, and an event of the run, whose watcher tells the configured channels.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        notices: Complaints | None = None,
        record: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Begin without rules.

        Args:
            enabled: whether rules are evaluated at all.
            notices: tells people what is wrong with a rule.
            record: given each change of an alert, as the event of a run.
        """
        self.enabled = bool(enabled)
        self._notices = notices or Complaints()
        self._record = record
        self._rules = CallableRules(note=lambda text: self._notices.say(text, text), seconds=SECONDS)
        self._steps = Worklist(self._evaluate, name="stepscope-alerts", most=MOST_WAITING)
        self.skipped = 0
        """Steps that were not looked at, as rules take longer than steps."""
        self.alerts: deque[dict[str, Any]] = deque(maxlen=MOST_KEPT)
        """What has fired and was resolved, oldest first."""

    def add_alert_rule(
        self,
        name: str,
        condition: Callable[[Any], Any] | None = None,
        severity: str = "warning",
        message: str = "",
        cooldown_seconds: float = 0.0,
        remedy: str = "",
    ) -> bool:
        """Add a rule, or put one in the place of another of that name; say whether it was taken.

        Args:
            name: shown to people.
            condition: takes the metrics of a step (`metrics.loss`), returns whether that is alarming.
            severity: info, warning or critical.
            message: template such as "Loss spike detected: {loss:.2f}"; a placeholder that is no metric stays as it is.
            cooldown_seconds: in which it does not fire again.
            remedy: what to do, told with it.
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
        """Return the rules that are off since they raised, hung or returned nonsense, and why."""
        return self._rules.disabled()

    def active(self) -> list[dict[str, Any]]:
        """Return what fires now."""
        latest = {row["rule"]: row for row in list(self.alerts)}
        return [row for row in latest.values() if row["state"] == "firing"]

    def check(self, metrics: Any) -> None:
        """Have a step looked at, and return at once: `metrics` is a mapping, or has `to_dict`."""
        if not self.enabled or not self._rules.names():
            return
        self.skipped += not self._steps.add(metrics)

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until every step was looked at, at most so long; say whether it was."""
        return self._steps.flush(seconds)

    def _evaluate(self, metrics: Any) -> None:
        with self._notices.shield("evaluate", "evaluate alert rules"):
            values: Mapping[str, Any] = metrics.to_dict() if hasattr(metrics, "to_dict") else metrics
            for change in self._rules.check(values):
                self._record_change(change)

    def _record_change(self, change: Transition) -> None:
        event = change.event()
        self.alerts.append(event)
        if change.tells and change.state == "firing":
            tell(UNSAFE.sub(" ", f"ALERT {change.severity}: {change.text}"))
        if self._record is not None:
            self._record(event)
