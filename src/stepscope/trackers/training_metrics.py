"""What is known about one training step."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import cast

from stepscope.trackers.scalar import host_number

MIB = 2**20
RECORDED_AS = {
    "batch_time": ("step_seconds", 1.0),
    "cpu_memory_mb": ("process/memory_bytes", float(MIB)),
    "gpu_memory_mb": ("process/gpu_memory_bytes", float(MIB)),
}
"""Fields whose name in a run differs from the documents' spelling, with the factor to the base unit."""
ALIASES = {
    "lr": "learning_rate",
    "gradient_norm": "grad_norm",
    "samples_per_sec": "samples_per_second",
    "throughput_samples_per_sec": "samples_per_second",
    "tokens_per_sec": "tokens_per_second",
}
"""Other spellings of one and the same quantity. `throughput` is not among them: it does not say of what."""
_PLAIN = ("epoch", "loss", "accuracy", "learning_rate", "grad_norm")
_RECORDED = (
    *((name, name, 1.0) for name in _PLAIN),
    *((field_name, name, factor) for field_name, (name, factor) in RECORDED_AS.items()),
)


@dataclass
class TrainingMetrics:
    """One step. What is not known is None; a custom metric reads as an attribute (`metrics.tokens_per_second`).

    A value that came as a device tensor stays a one-element tensor until `to_dict` reads it: comparing or formatting it
    works as with a float, and waits for the device.
    """

    step: int | None = None
    epoch: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    """Fraction, 0 to 1."""
    learning_rate: float | None = None
    grad_norm: float | None = None
    """Total norm of the gradients."""
    batch_time: float | None = None
    """Seconds from the end of the step before to the end of this one."""
    cpu_memory_mb: float | None = None
    """Resident memory of the process in MiB (2**20 bytes; the documents write MB)."""
    gpu_memory_mb: float | None = None
    """Device memory of the process in MiB (2**20 bytes; the documents write MB)."""
    timestamp: float | None = None
    """Seconds since 1970 UTC."""
    custom: dict[str, object] = field(default_factory=dict)
    """Metrics under names of the user's own."""

    def __getattr__(self, name: str) -> float:
        """Return a custom metric.

        Raises:
            AttributeError: there is none of this name in this step.
        """
        custom = self.__dict__.get("custom", {})
        if name in custom:
            return cast("float", custom[name])
        known = ", ".join(sorted(map(str, custom))) or "none"
        raise AttributeError(
            f"cannot find metric {name!r} in this step: its custom ones are {known}; check the spelling"
        )

    def to_dict(self) -> dict[str, object]:
        """Return what is known in the documents' spelling and units, custom metrics beside the others.

        Waits for values that are on a device.
        """
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "custom"}
        merged = {**self.custom, **{name: value for name, value in own.items() if value is not None}}
        return {name: _plain(value) for name, value in merged.items()}

    def to_run(self) -> dict[str, object]:
        """Return the values as a run records them: canonical names, base units, device tensors as they are."""
        recorded = {ALIASES.get(name, name): value for name, value in self.custom.items() if value is not None}
        own = self.__dict__
        for field_name, name, factor in _RECORDED:
            value = own[field_name]
            if value is not None:
                recorded[name] = value if factor == 1.0 else value * factor
        return recorded


def _plain(value: object) -> object:
    """Return a tensor's number as a Python one, anything else as it is."""
    return host_number(value) if hasattr(value, "item") else value
