"""Values on a device: captured at the call without a synchronization, read when they have arrived.

A torch scalar is copied into a pinned slot on the current stream, followed by an event; in-place accumulators and
CUDA-graph outputs may change right after. A JAX array is immutable and kept as it is. Not verified on hardware: the
tests drive this code with a stand-in for torch's device module.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

SLOTS = 1024
"""Maximum values in flight; further ones are refused and counted."""


class Arriving(Protocol):
    """A value on its way to the host."""

    def ready(self) -> bool:
        """Return whether `read` would return at once."""
        ...

    def read(self) -> float:
        """Return the value."""
        ...


class DeviceError(Exception):
    """Why a device value could not be captured; the text says what to do."""


def on_device(value: Any) -> bool:
    """Return whether reading `value` now could wait for a device."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "torch" or hasattr(kind, "__torch_function__"):
        device = getattr(value, "device", None)
        return getattr(device, "type", "cpu") not in ("cpu", "meta")
    return hasattr(kind, "is_ready") and hasattr(kind, "copy_to_host_async")


class DeviceValues:
    """Capture device scalars; one pool of pinned slots per device type."""

    def __init__(self, slots: int = SLOTS) -> None:
        """Reserve nothing until the first device value; with 0 slots, capture none."""
        self._slots = slots
        self._pools: dict[str, TorchPool] = {}

    def take(self, value: Any) -> Arriving:
        """Snapshot a scalar; raise DeviceError if it is none, during graph capture, and if too many are in flight."""
        if not self._slots:
            raise DeviceError("values on a device are not taken; set recorder.device_values")
        is_jax = hasattr(type(value), "copy_to_host_async")
        if (getattr(value, "size", 1) if is_jax else value.numel()) != 1:
            raise DeviceError("a tensor with several elements is not a metric; log its mean, or use run.histogram")
        if is_jax:
            return JaxValue(value)
        kind = value.device.type
        if kind not in self._pools:
            self._pools[kind] = TorchPool(sys.modules["torch"], kind, self._slots)
        return self._pools[kind].take(value)


class JaxValue:
    """An immutable array: its reference is its snapshot."""

    def __init__(self, value: Any) -> None:
        value.copy_to_host_async()  # does not wait
        self._value = value

    def ready(self) -> bool:
        """Return whether the computation behind the array has ended."""
        return bool(self._value.is_ready())

    def read(self) -> float:
        """Return the value."""
        return float(self._value.item() if getattr(self._value, "ndim", 0) else self._value)


class TorchPool:
    """Pinned host slots for the scalars of one device type, each with its event."""

    def __init__(self, torch: Any, kind: str, slots: int) -> None:
        """Reserve the slots; raise DeviceError if the device has no events."""
        self._module = getattr(torch, kind, None)
        if self._module is None or not hasattr(self._module, "Event"):
            raise DeviceError(f"a {kind} device has no events; log float(value) where a wait does not matter")
        self.memory = torch.empty(slots, dtype=torch.float64, pin_memory=True)
        self.events = [self._module.Event() for _ in range(slots)]
        self.free = list(range(slots))

    def take(self, value: Any) -> Arriving:
        """Copy the scalar into a free slot, after the work already queued."""
        capturing = getattr(self._module, "is_current_stream_capturing", None)
        if capturing is not None and capturing():
            raise DeviceError("a graph is being captured; log outside the captured region")
        if not self.free:
            raise DeviceError("too many device values are in flight; log less often")
        slot = self.free[-1]
        self.memory[slot].copy_(value.detach().reshape(()), non_blocking=True)
        self.events[slot].record()
        self.free.pop()  # only now: a copy that the device rejects costs no slot
        return TorchValue(self, slot)


class TorchValue:
    """A scalar in a slot of a pool."""

    __slots__ = ("_pool", "_slot")

    def __init__(self, pool: TorchPool, slot: int) -> None:
        self._pool, self._slot = pool, slot

    def ready(self) -> bool:
        """Return whether the copy into the slot has ended."""
        return bool(self._pool.events[self._slot].query())

    def read(self) -> float:
        """Return the value and free the slot."""
        self._pool.free.append(self._slot)
        return float(self._pool.memory[self._slot])
