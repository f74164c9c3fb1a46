"""Rules that are functions of the user's program. They run in the training process, isolated from it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.alerts.evaluation.state import RESOLVED, Alert, AlertText, Point
from stepscope.alerts.rules.rule import SEVERITIES, WARNING, Rule
from stepscope.alerts.rules.template import fill
from stepscope.core.errors import UsageError

if TYPE_CHECKING:
    from stepscope.alerts.evaluation.state import Transition

STRIKES = 3
"""Failures in a row after which a rule is off."""
SECONDS = 0.25
"""Seconds that one condition may take; the training waits at most twice as long for all of them."""
LOOKS = 4
"""This time is waited for in as many parts: a machine that was suspended uses up only one of them."""
MOST_VALUES = 1000


class MetricValues(Mapping[str, Any]):
    """Values by attribute, by name and by key: `m.loss`, `m["loss"]`, `m.get("loss")`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Hold values by name."""
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        """Return the value of that name."""
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"no metric is called {name!r}; there are {', '.join(self._values)}") from None

    def __getitem__(self, name: str) -> Any:
        """Return the value of that name."""
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._values)

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._values)


@dataclass
class _CallableRule:
    rule: Rule
    condition: Callable[[Any], Any]
    alert: Alert
    strikes: int = 0
    off: str = ""
    """Why it is off; empty while it is on."""


class _ConditionThread:
    """A daemon thread that calls one condition after another; abandoned when one of them hangs."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[Any], Any], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="stepscope-alert-rules", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            condition, metrics = job
            try:
                self._answers.put((True, condition(metrics)))
            except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, SystemExit too
                self._answers.put((False, error))

    def ask(self, condition: Callable[[Any], Any], metrics: Any, seconds: float) -> tuple[bool, Any]:
        """Return whether the condition returned, and its value or error; queue.Empty if it takes too long."""
        self._jobs.put((condition, metrics))
        for _ in range(LOOKS - 1):
            with contextlib.suppress(queue.Empty):
                return self._answers.get(timeout=seconds / LOOKS)
        return self._answers.get(timeout=seconds / LOOKS)

    def leave(self) -> None:
        """Let the thread end once it can."""
        self._jobs.put(None)


class CallableRules:
    """The rules that a program adds to its own run."""

    def __init__(self, note: Callable[[str], None] = lambda _: None, seconds: float = SECONDS) -> None:
        """Start without rules; `note` reports why a rule was switched off, a condition may take `seconds`."""
        self._note, self._seconds = note, seconds
        self._rules: dict[str, _CallableRule] = {}
        self._worker: _ConditionThread | None = None
        self._lock = threading.Lock()

    def add(
        self,
        name: str,
        condition: Callable[[Any], Any],
        severity: str = WARNING,
        message: str = "",
        cooldown_seconds: float = 0.0,
        remedy: str = "",
    ) -> None:
        """Add a rule; it replaces one of the same name.

        Args:
            name: of the rule.
            condition: takes the metrics (`m.loss`, `m["loss"]`), returns whether to alert.
            severity: info, warning or critical.
            message: template, as in "loss is {loss:.2f}"; a placeholder without a value stays unchanged.
            cooldown_seconds: minimum time between two alerts.
            remedy: what to do.

        Raises:
            UsageError: the condition cannot be called, or the severity is unknown.
        """
        what = f"add alert rule {name!r}"
        if not callable(condition):
            raise UsageError(what, "its condition cannot be called", "give a function or a lambda")
        if severity not in SEVERITIES:
            raise UsageError(what, f"there is no severity {severity!r}", f"use one of {', '.join(SEVERITIES)}")
        pace = max(0.0, float(cooldown_seconds))
        rule = Rule(str(name), event=("callable",), severity=severity, cooldown=pace, message=message, remedy=remedy)
        with self._lock:
            self._rules[rule.name] = _CallableRule(rule, condition, Alert(rule, "", None))

    def names(self) -> list[str]:
        """Return the names of the rules."""
        return list(self._rules)

    def disabled(self) -> dict[str, str]:
        """Return the rules that are off, and why."""
        return {name: one.off for name, one in self._rules.items() if one.off}

    def check(self, metrics: Any, now: float | None = None) -> list[Transition]:
        """Evaluate every rule; return the changes. Never raises, and takes at most twice the time of one condition.

        `metrics` is a mapping, or an object whose attributes are the values; `now` is in seconds since 1970.
        """
        if not self._rules or not self._lock.acquire(blocking=False):
            return []
        try:
            when = time.time() if now is None else now
            values = values_of(metrics)
            given = metrics if not isinstance(metrics, Mapping) else MetricValues(values)
            until = time.monotonic() + 2 * self._seconds
            found = []
            for one in list(self._rules.values()):
                left = until - time.monotonic()
                if not one.off and left > 0:
                    found += self._evaluate(one, given, values, when, min(left, self._seconds))
            return found
        finally:
            self._lock.release()

    def _evaluate(
        self, one: _CallableRule, given: Any, values: Mapping[str, Any], now: float, seconds: float
    ) -> list[Transition]:
        self._worker = self._worker or _ConditionThread()
        try:
            returned, answer = self._worker.ask(one.condition, given, seconds)
        except queue.Empty:
            self.close()
            return self._fail(one, f"it did not return within {seconds * 1e3:.0f} ms")
        if not returned:
            return self._fail(one, f"it raised {type(answer).__name__}: {answer}")
        holds = _truth(answer)
        if holds is None:
            return self._fail(one, f"it returned {type(answer).__name__}, which is neither true nor false")
        one.strikes = 0
        step = values.get("step")
        point = Point(now, step if isinstance(step, int) else None, holds, not holds)
        due = one.alert.see(point)
        if due == "fire":
            rule = one.rule
            text = fill(rule.message, values) if rule.message else f"{rule.name} holds"
            numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
            words = AlertText(text, fill(rule.remedy, values), rule.severity, {"values": numbers})
            return [one.alert.fire(point, words, silenced=False)]
        return [one.alert.turn(RESOLVED, now)] if due == "resolve" else []

    def _fail(self, one: _CallableRule, why: str) -> list[Transition]:
        """Count a failure; return that nothing changed."""
        one.strikes += 1
        if one.strikes >= STRIKES:
            one.off = why
            self._note(f"alert rule '{one.rule.name}' is off: {why}")
        return []

    def close(self) -> None:
        """Let the thread end, once its condition returns."""
        if self._worker is not None:
            self._worker.leave()
            self._worker = None


def values_of(metrics: Any) -> dict[str, Any]:
    """Return the plain values of a mapping, or of an object's public attributes."""
    try:
        pairs = list(metrics.items()) if isinstance(metrics, Mapping) else list(vars(metrics).items())
    except TypeError:
        names = [name for name in getattr(type(metrics), "__slots__", ()) if isinstance(name, str)]
        pairs = [(name, getattr(metrics, name, None)) for name in names]
    return {
        name: value
        for name, value in pairs[:MOST_VALUES]
        if isinstance(name, str) and not name.startswith("_") and isinstance(value, (int, float, str, bool))
    }


def _truth(answer: Any) -> bool | None:
    """Return a bool of Python or numpy as Python's; None for anything else."""
    if isinstance(answer, bool):
        return answer
    if type(answer).__name__ in {"bool_", "bool"} and type(answer).__module__ == "numpy":
        return bool(answer)
    return None
