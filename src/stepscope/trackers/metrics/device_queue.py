"""Device scalars of one series that have not been read yet, in bounded device memory and without a device sync."""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections import deque
from typing import NamedTuple

from stepscope.core.walls import attempt
from stepscope.trackers.metrics.scalar import DeviceScalar, host_number

BLOCK = 1024
"""Unread scalars that are joined into one device tensor (each alone takes 512 bytes of GPU memory)."""
MAX_BLOCKS = 256
"""Joined tensors kept; past that the oldest is dropped and counted, since reading it would make the loop wait."""


class Pending(NamedTuple):
    """One or many numbers on a device."""

    places: array[int]
    """Indices of the numbers in the series."""
    scalar: DeviceScalar
    joined: bool = False
    """Whether the tensor holds one number per place."""

    def read(self) -> list[float | int | None]:
        """Wait for the device and return one number per place, None where it cannot be read."""
        tensor = self.scalar.tensor
        return attempt(
            lambda: list(tensor.tolist()) if self.joined else [host_number(tensor)],
            lambda _error: [None] * len(self.places),
        )


class DeviceQueue:
    """First in, first out. The owner's lock guards every call except `Pending.read`."""

    __slots__ = ("_blocks", "_singles", "dropped")

    def __init__(self) -> None:
        """Start empty."""
        self._blocks: deque[Pending] = deque()
        self._singles: deque[Pending] = deque()
        self.dropped = 0
        """Values dropped because they were not read in time."""

    def __len__(self) -> int:
        """Count the tensors held."""
        return len(self._blocks) + len(self._singles)

    def add(self, place: int, scalar: DeviceScalar) -> None:
        """Append the scalar that belongs at `place` of the series."""
        self._singles.append(Pending(array("q", [place]), scalar))
        if len(self._singles) >= BLOCK:
            self._join()

    def oldest(self) -> Pending | None:
        """Return the next one to read."""
        source = self._blocks or self._singles
        return source[0] if source else None

    def remove(self, pending: Pending) -> bool:
        """Remove the oldest; return False if it is no longer `pending`."""
        source = self._blocks or self._singles
        if not source or source[0] is not pending:
            return False
        source.popleft()
        return True

    def _join(self) -> None:
        """Join all single tensors into one, on the device."""
        torch = sys.modules.get("torch")
        tensors = [single.scalar.tensor for single in self._singles]
        stacked = None
        if torch is not None and all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            with contextlib.suppress(RuntimeError):  # tensors of two devices cannot be joined
                stacked = torch.stack([tensor.reshape(()) for tensor in tensors])
        if stacked is None:
            self._singles.popleft()
            self.dropped += 1
            return
        places = array("q", [single.places[0] for single in self._singles])
        self._singles.clear()
        self._blocks.append(Pending(places, DeviceScalar(stacked), joined=True))
        if len(self._blocks) > MAX_BLOCKS:
            self.dropped += len(self._blocks.popleft().places)
