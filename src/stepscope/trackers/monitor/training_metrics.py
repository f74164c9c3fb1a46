"""The values of one training step, and functions of the user that add to them."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import dataclass, field, fields
from inspect import Parameter
from typing import TYPE_CHECKING, cast

from stepscope.core.errors import in_words
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.metrics.scalar import host_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STRIKES = 3
"""Failures in a row after which a function is no longer called."""


@dataclass
class TrainingMetrics:
    """One step. Unknown values are None; a custom metric is also an attribute (`metrics.tokens_per_second`).

    A device tensor stays a one-element tensor until `to_dict` reads it: it compares and formats like a float, which
    waits for the device.
    """

    step: int | None = None
    epoch: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    """Fraction, 0 to 1."""
    learning_rate: float | None = None
    grad_norm: float | None = None
    """Total norm of the gradients, before clipping."""
    grad_norm_clipped: float | None = None
    """The same after clipping; None if the loop did not clip."""
    batch_time: float | None = None
    """Seconds from the end of the previous step to the end of this one."""
    cpu_memory_mb: float | None = None
    """Resident memory of the process in MiB (2**20 bytes)."""
    gpu_memory_mb: float | None = None
    """Memory in use on the process's GPU in MiB (2**20 bytes)."""
    timestamp: float | None = None
    """Seconds since 1970 UTC."""
    custom: dict[str, object] = field(default_factory=dict)
    """Metrics under the user's own names."""

    def __getattr__(self, name: str) -> float:
        """Return a custom metric.

        Raises:
            AttributeError: this step has no metric of this name.
        """
        custom = self.__dict__.get("custom", {})
        if name in custom:
            return cast("float", custom[name])
        known = ", ".join(sorted(map(str, custom))) or "none"
        raise AttributeError(
            f"cannot find metric {name!r} in this step: its custom ones are {known}; check the spelling"
        )

    def to_dict(self) -> dict[str, object]:
        """Return the known values, with custom metrics, under compatible names and units. Waits for a device."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "custom"}
        merged = {**self.custom, **{name: value for name, value in own.items() if value is not None}}
        return {name: host_number(value) if hasattr(value, "item") else value for name, value in merged.items()}

    def to_run(self) -> dict[str, object]:
        """Return the values as a run records them, under the names they were given; device tensors as they are."""
        own = self.__dict__
        recorded = {name: value for name, value in self.custom.items() if value is not None}
        recorded |= {name: own[field_name] for field_name, name in _RECORDED.items() if own[field_name] is not None}
        return recorded


_RECORDED = {name: name for name in TrainingMetrics.__dataclass_fields__ if name not in {"step", "timestamp", "custom"}}
_RECORDED["batch_time"] = "step_seconds"
"""The metric name of each field in a run."""


class CustomMetrics:
    """Call each function once per step. It takes the step's TrainingMetrics, or nothing, and returns a number."""

    def __init__(self, functions: Mapping[str, Callable[..., object]] | None = None) -> None:
        """Take the functions by the name of their metric."""
        self._functions: dict[str, Callable[[TrainingMetrics], object]] = {}
        self._strikes: Counter[str] = Counter()
        self._notices = Complaints()
        self.errors: Counter[str] = Counter()
        """All failures, by name."""
        for name, function in (functions or {}).items():
            if callable(function):
                self._functions[name] = _taking_metrics(function)
            else:
                self.errors[name] += 1
                cause = f"a {type(function).__name__} is not a function; give a function of the step's metrics"
                self._notices.say(name, f"cannot use custom metric {name!r}: {cause}")

    def disabled(self) -> list[str]:
        """Return the metrics whose function is no longer called."""
        return [name for name, strikes in self._strikes.items() if strikes >= STRIKES]

    def add_to(self, metrics: TrainingMetrics) -> None:
        """Call the functions for a step and add their values; values that the loop gave are kept, failures left out."""
        values: dict[str, object] = {}
        for name, function in self._functions.items():
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


def _taking_metrics(function: Callable[..., object]) -> Callable[[TrainingMetrics], object]:
    """Return a function that takes the step's metrics; one that cannot be inspected is assumed to do so."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)
    return function if any(one.kind in positional for one in parameters) else lambda _metrics: function()
