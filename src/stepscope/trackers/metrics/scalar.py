"""Get one number from a value of a training loop: Python and numpy numbers, tensors of any framework.

A tensor on a device is not read at once, since the loop would wait for the device: it is copied on the device and read
later.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, cast

from stepscope.core.walls import attempt


@dataclass(eq=False, slots=True)
class DeviceScalar:
    """A copy on the device of a number that has not been read yet; nothing else writes to it."""

    tensor: Any

    def ready(self) -> bool:
        """Return whether it can be read without waiting; False where the framework cannot know (all but JAX)."""
        is_ready = getattr(self.tensor, "is_ready", None)
        return bool(is_ready()) if callable(is_ready) else False


def scalar_of(value: object) -> float | int | DeviceScalar | None:
    """Return the number in `value`, a copy on its device, or None if it does not hold a single number.

    Integers stay integers. Never raises and never waits for a device.
    """
    if type(value) is float or type(value) is int:
        return value
    # A failed device, or the conversion of a user's object, may raise anything; the caller counts None.
    return attempt(lambda: _copy(value) if _on_device(value) else host_number(value), lambda _error: None)


def host_number(value: object) -> float | int:
    """Convert a value that holds one number, and wait for its device.

    Raises:
        Exception: any, if the object does not hold exactly one number.
    """
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError(type(value).__name__)
    detach = getattr(value, "detach", None)
    plain = detach() if callable(detach) else value
    item = getattr(plain, "item", None)
    number = item() if callable(item) else plain
    return int(number) if isinstance(number, int) else float(cast("float", number))


def _on_device(value: object) -> bool:
    """Return whether reading the value would wait for a device or for a computation."""
    is_ready = getattr(value, "is_ready", None)
    if callable(is_ready):
        return not is_ready()
    device = getattr(value, "device", None)
    return device is not None and "cpu" not in str(getattr(device, "type", device)).lower()


def _copy(value: object) -> DeviceScalar | None:
    """Copy a one-element tensor on its own device; None if it has more elements or a CUDA graph is being captured."""
    if any(length != 1 for length in getattr(value, "shape", ())) or _capturing():
        return None
    detach = getattr(value, "detach", None)
    plain = detach() if callable(detach) else value
    copy = getattr(plain, "clone", None) or getattr(plain, "copy", None)
    return DeviceScalar(copy() if callable(copy) else plain)


def _capturing() -> bool:
    """Return whether a CUDA graph is being captured: a copy made now would become part of it."""
    torch = sys.modules.get("torch")
    # Only once CUDA is in use: builds of torch without CUDA raise at the second call.
    return bool(torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
