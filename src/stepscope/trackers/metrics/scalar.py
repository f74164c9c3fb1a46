"""One number out of whatever a training loop holds: Python and numpy numbers, tensors of any framework.

A tensor on a device is not read when it is taken, since the loop would wait for the device: it is copied where it lies
and read later.
"""

from __future__ import annotations

import sys
from typing import Any, cast

_TEXT = (str, bytes, bytearray)


class DeviceScalar:
    """A copy, on its device, of a number that is not on the host yet."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        """Keep the copy; nobody else writes to it."""
        self.tensor = tensor

    def ready(self) -> bool:
        """Tell whether reading would not wait, where the framework can say so (JAX); else False."""
        is_ready = getattr(self.tensor, "is_ready", None)
        return bool(is_ready()) if callable(is_ready) else False


def take(value: object) -> float | int | DeviceScalar | None:
    """Return the number in `value`, a copy on its device, or None if there is no single number in it.

    Integers stay integers. Never raises and never waits for a device.
    """
    if type(value) is float or type(value) is int:
        return value
    try:
        return _copy(value) if _on_device(value) else host_number(value)
    except Exception:  # noqa: BLE001 - a user's object may raise anything when it is converted; the caller counts it
        return None


def host_number(value: object) -> float | int:
    """Convert a value with one number in it, wherever it lies.

    Raises:
        Exception: whatever the object raises when it does not hold exactly one number.
    """
    if isinstance(value, _TEXT):
        raise TypeError(type(value).__name__)
    detach = getattr(value, "detach", None)
    plain = detach() if callable(detach) else value
    item = getattr(plain, "item", None)
    number = item() if callable(item) else plain
    return int(number) if isinstance(number, int) else float(cast("float", number))


def _on_device(value: object) -> bool:
    """Tell whether reading the value would wait for a device or for a computation under way."""
    is_ready = getattr(value, "is_ready", None)
    if callable(is_ready):
        return not is_ready()
    device = getattr(value, "device", None)
    if device is None:
        return False
    return "cpu" not in str(getattr(device, "type", device)).lower()


def _copy(value: object) -> DeviceScalar | None:
    """Copy a one-element tensor on its own device; None if it has more elements or a CUDA graph is being captured."""
    if any(length != 1 for length in getattr(value, "shape", ())) or _capturing():
        return None
    detach = getattr(value, "detach", None)
    plain = detach() if callable(detach) else value
    copy = getattr(plain, "clone", None) or getattr(plain, "copy", None)
    return DeviceScalar(copy() if callable(copy) else plain)


def _capturing() -> bool:
    """Tell whether a CUDA graph is being captured: a copy made now would become part of the graph."""
    torch = sys.modules.get("torch")
    # Asked only once CUDA is in use: builds of torch without CUDA raise at the second question.
    return bool(torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
