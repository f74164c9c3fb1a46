"""Copy a few numbers from a device to the host without waiting for it.

Not verified on hardware: the tests drive this code with stand-ins for the device's tensors and events.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, Generic, TypeVar

Note = TypeVar("Note")
MOST_IN_FLIGHT = 16


class TorchDevice:
    """Torch's module for one kind of device, such as `torch.cuda`."""

    def __init__(self, kind: str) -> None:
        self._torch: Any = sys.modules["torch"]
        self._module = getattr(self._torch, kind)

    def pinned(self, like: Any) -> Any:
        """Return pinned memory, which torch caches and reuses."""
        return self._torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def event(self) -> Any:
        """Return a new event of the device."""
        return self._module.Event()


class Readback(Generic[Note]):
    """Vectors on their way to the host, in order, each with a note that describes it."""

    def __init__(self, devices: dict[str, Any] | None = None) -> None:
        self._devices = devices if devices is not None else {}
        self._flying: deque[tuple[Any, Any, Note]] = deque()
        self.lost = 0
        """Vectors that were not sent because too many were in flight."""

    def send(self, vector: Any, note: Note) -> None:
        """Start to copy a vector; one that is on the host already is cloned now."""
        kind = vector.device.type
        if kind == "cpu":
            self._flying.append((vector.detach().clone(), None, note))
            return
        if len(self._flying) >= MOST_IN_FLIGHT:
            self.lost += 1
            return
        device = self._devices.get(kind) or self._devices.setdefault(kind, TorchDevice(kind))
        host, event = device.pinned(vector), device.event()
        host.copy_(vector.detach(), non_blocking=True)
        event.record()
        self._flying.append((host, event, note))

    def arrived(self) -> list[tuple[Any, Note]]:
        """Return the host tensors that have arrived since the last call, in the order they were sent."""
        found = []
        while self._flying:
            host, event, note = self._flying[0]
            if event is not None and not event.query():
                break
            self._flying.popleft()
            found.append((host, note))
        return found

    def __len__(self) -> int:
        return len(self._flying)
