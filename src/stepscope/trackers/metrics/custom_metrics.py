"""Custom metrics: functions of the user, called once per step; a failure cannot stop the training."""

from __future__ import annotations

import inspect
from collections import Counter
from inspect import Parameter
from typing import TYPE_CHECKING

from stepscope.core.errors import in_words
from stepscope.recorder.complaints import Complaints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.trackers.monitor.training_metrics import TrainingMetrics

STRIKES = 3
"""Failures in a row after which a function is no longer called."""


class CustomMetrics:
    """Call each function once per step. It takes the step's TrainingMetrics, or nothing, and returns a number."""

    def __init__(self, functions: Mapping[str, Callable[..., object]] | None = None) -> None:
        """Take the functions by the name of their metric."""
        self._functions: dict[str, Callable[[TrainingMetrics], object]] = {}
        self._strikes: dict[str, int] = {}
        self._notices = Complaints()
        self.errors: Counter[str] = Counter()
        """All failures, by name."""
        for name, function in (functions or {}).items():
            self.add(name, function)

    def add(self, name: str, function: Callable[..., object]) -> None:
        """Add or replace the function of a metric. An object that is not callable is refused with a notice."""
        if not callable(function):
            self.errors[name] += 1
            cause = f"a {type(function).__name__} is not a function; give a function of the step's metrics"
            self._notices.say(name, f"cannot use custom metric {name!r}: {cause}")
            return
        self._functions[name] = function if _takes_metrics(function) else lambda _metrics: function()
        self._strikes[name] = 0

    def disabled(self) -> list[str]:
        """Return the metrics whose function is no longer called."""
        return [name for name, strikes in self._strikes.items() if strikes >= STRIKES]

    def add_to(self, metrics: TrainingMetrics) -> None:
        """Call the functions for a step and add their values; values that the loop gave are kept, failures left out."""
        values: dict[str, object] = {}
        for name, function in list(self._functions.items()):
            if self._strikes[name] >= STRIKES:
                continue
            try:
                value = function(metrics)
            except Exception as error:  # noqa: BLE001 - a user's function may raise anything; counted and reported once
                self.errors[name] += 1
                self._strikes[name] += 1
                remedy = f"correct the function, it is left out after {STRIKES} failures in a row"
                self._notices.say(name, f"cannot compute custom metric {name!r}: {in_words(error)}; {remedy}")
                continue
            self._strikes[name] = 0
            if value is not None:
                values[name] = value
        for name, value in values.items():
            metrics.custom.setdefault(name, value)


def _takes_metrics(function: Callable[..., object]) -> bool:
    """Return whether a function takes the step's metrics; assumed if it cannot be inspected."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)
    return any(parameter.kind in positional for parameter in parameters)
