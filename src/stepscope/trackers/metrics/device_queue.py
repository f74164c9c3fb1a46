"""Device scalars of one series that nobody has read yet, in bounded device memory and without a device sync."""

from __future__ import annotations

import sys
from array import array
from collections import deque

from stepscope.trackers.metrics.scalar import DeviceScalar, host_number

BLOCK = 1024
"""Unread scalars that are joined into one device tensor (each alone takes 512 bytes of GPU memory)."""
MAX_BLOCKS = 256
"""Joined tensors kept; past that the oldest is dropped and counted, since reading it would make the loop wait."""


class Pending:
    """One or many numbers on a device, with their places in the series."""

    __slots__ = ("joined", "places", "scalar")

    def __init__(self, places: array[int], scalar: DeviceScalar, *, joined: bool) -> None:
        """Keep the tensor of `scalar`; joined tells that it holds one number per place."""
        self.places = places
        self.scalar = scalar
        self.joined = joined

    def read(self) -> list[float | int | None]:
        """Wait for the device and return a number per place, None for one that cannot be read."""
        try:
            if self.joined:
                return list(self.scalar.tensor.tolist())
            return [host_number(self.scalar.tensor)]
        except Exception:  # noqa: BLE001 - a device may fail with any error; the caller counts each None
            return [None] * len(self.places)


class DeviceQueue:
    """First in, first out. The owner's lock guards every call but `Pending.read`."""

    __slots__ = ("_blocks", "_singles", "dropped")

    def __init__(self) -> None:
        """Start empty."""
        self._blocks: deque[Pending] = deque()
        self._singles: deque[Pending] = deque()
        self.dropped = 0
        """Values given up because nobody read them."""

    def __len__(self) -> int:
        """Count the tensors held."""
        return len(self._blocks) + len(self._singles)

    def add(self, place: int, scalar: DeviceScalar) -> None:
        """Append the scalar that belongs at `place` of the series."""
        self._singles.append(Pending(array("q", [place]), scalar, joined=False))
        if len(self._singles) >= BLOCK:
            self._join()

    def oldest(self) -> Pending | None:
        """Return the next one to read."""
        source = self._blocks or self._singles
        return source[0] if source else None

    def remove(self, pending: Pending) -> bool:
        """Take the oldest out; False if it is not `pending` any more."""
        source = self._blocks or self._singles
        if not source or source[0] is not pending:
            return False
        source.popleft()
        return True

    def _join(self) -> None:
        """Make one device tensor of all single ones, by work on the device only."""
        torch = sys.modules.get("torch")
        tensors = [single.scalar.tensor for single in self._singles]
        if torch is None or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            self.dropped += len(self._singles.popleft().places)
            return
        try:
            stacked = torch.stack([tensor.reshape(()) for tensor in tensors])
        except RuntimeError:
            # Two devices in one series cannot be joined.
            self.dropped += len(self._singles.popleft().places)
            return
        places = array("q", [single.places[0] for single in self._singles])
        self._singles.clear()
        self._blocks.append(Pending(places, DeviceScalar(stacked), joined=True))
        if len(self._blocks) > MAX_BLOCKS:
            self.dropped += len(self._blocks.popleft().places)
