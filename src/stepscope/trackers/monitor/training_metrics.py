"""The values of one training step."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import cast

from stepscope.trackers.metrics.scalar import host_number

_OWN = (
    "epoch",
    "loss",
    "accuracy",
    "learning_rate",
    "grad_norm",
    "grad_norm_clipped",
    "cpu_memory_mb",
    "gpu_memory_mb",
)
_RECORDED = {**{name: name for name in _OWN}, "batch_time": "step_seconds"}
"""The metric name of each field in a run."""


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
