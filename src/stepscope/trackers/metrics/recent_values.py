"""The values of one metric in process: a list of the newest, and exact statistics over all."""

from __future__ import annotations

import math
import sys
import threading
from array import array
from collections import deque
from contextlib import contextmanager, suppress
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope.core.walls import attempt
from stepscope.trackers.metrics.scalar import DeviceScalar, host_number, scalar_of
from stepscope.trackers.metrics.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Self

BLOCK = 1024
"""Unread scalars that are joined into one device tensor (each alone takes 512 bytes of GPU memory)."""
MAX_BLOCKS = 256
"""Joined tensors kept; past that the oldest is dropped and counted, since reading it would make the loop wait."""
WAIT_SECONDS = 0.02
"""How long a thread waits for another; after that the value is dropped and counted."""


@contextmanager
def held(lock: threading.Lock) -> Iterator[bool]:
    """Hold a lock, or go on without it after a while: a signal handler may interrupt its owner in this very thread."""
    is_held = lock.acquire(timeout=WAIT_SECONDS)
    try:
        yield is_held
    finally:
        if is_held:
            lock.release()


class Pending(NamedTuple):
    """One or many numbers on a device."""

    places: array[int]
    """Indices of the numbers in the series."""
    scalar: DeviceScalar
    """Its tensor holds one number per place."""

    def read(self) -> list[float | int | None]:
        """Wait for the device and return one number per place, None where it cannot be read."""
        tensor = self.scalar.tensor
        return attempt(
            lambda: list(tensor.tolist()) if len(self.places) > 1 else [host_number(tensor)],
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
        return next(iter(self._blocks or self._singles), None)

    def remove(self, pending: Pending) -> bool:
        """Remove the oldest; return False if it is no longer `pending`."""
        if self.oldest() is not pending:
            return False
        (self._blocks or self._singles).popleft()
        return True

    def _join(self) -> None:
        """Join all single tensors into one, on the device."""
        torch = sys.modules.get("torch")
        tensors = [single.scalar.tensor for single in self._singles]
        stacked = None
        if torch is not None and all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            with suppress(RuntimeError):  # tensors of two devices cannot be joined
                stacked = torch.stack([tensor.reshape(()) for tensor in tensors])
        if stacked is None:
            self._singles.popleft()
            self.dropped += 1
            return
        places = array("q", [single.places[0] for single in self._singles])
        self._singles.clear()
        self._blocks.append(Pending(places, DeviceScalar(stacked)))
        if len(self._blocks) > MAX_BLOCKS:
            self.dropped += len(self._blocks.popleft().places)


class RecentValues(list[Any]):
    """A list of the newest `capacity` values, with statistics over all of them.

    `append` and `extend` drop the oldest values when the list is full. `len()` counts the values in the list,
    `recorded` all that were ever appended. Anything but a number is kept and is in no statistic. A device tensor is
    read when the list is read, not when it is appended; until then it is NaN. A copy is a plain list.
    """

    def __init__(self, values: Iterable[object] = (), *, capacity: int = 10_000) -> None:
        """Start with the given values and keep at most `capacity` of them."""
        super().__init__()
        self.capacity = max(1, int(capacity))
        self._lock = threading.Lock()
        self._reset()
        self.unreadable = 0
        """Device tensors that could not be read."""
        self.dropped_busy = 0
        """Values dropped because another thread held the series for too long."""
        self.extend(values)

    def _reset(self) -> None:
        super().clear()
        self._gone = 0  # places before that of the first value that is kept
        self._queue = DeviceQueue()
        self._statistics = Statistics()
        self.recorded = 0

    def append(self, value: object) -> None:
        """Add one value; a number may be Python's, numpy's, or a tensor of one element."""
        number = scalar_of(value)
        self.push(value if number is None else number)

    def push(self, value: Any) -> bool:
        """Add a result of `scalar_of`, or anything else. False if another thread held the series for too long."""
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            self.dropped_busy += 1
            return False
        try:
            self.recorded += 1
            pending = isinstance(value, DeviceScalar)
            super().append(math.nan if pending else value)
            if len(self) > self.capacity:
                super().__delitem__(0)
                self._gone += 1
            if pending:
                self._queue.add(self._gone + len(self) - 1, value)
                while (oldest := self._queue.oldest()) is not None and oldest.scalar.ready():
                    self._enter(oldest, oldest.read())  # those that can be read without waiting
            elif isinstance(value, (int, float)):
                self._statistics.add(_as_float(value))
        finally:
            self._lock.release()
        return True

    def extend(self, values: Iterable[object]) -> None:
        """Append each value."""
        for value in values:
            self.append(value)

    def __iadd__(self, values: Iterable[object]) -> Self:  # type: ignore[misc] # a list's own takes no other type
        """Append each value."""
        self.extend(values)
        return self

    def clear(self) -> None:
        """Forget values and statistics."""
        with held(self._lock):
            self._reset()

    def _enter(self, pending: Pending, numbers: list[float | int | None]) -> None:
        """Put numbers from a device at their indices, unless those were dropped, and add them to the statistics."""
        if not self._queue.remove(pending):
            return
        for place, number in zip(pending.places, numbers, strict=True):
            if number is None:
                self.unreadable += 1
                continue
            if place >= self._gone:
                super().__setitem__(place - self._gone, number)
            self._statistics.add(_as_float(number))

    def settle(self) -> None:
        """Read every pending device scalar. Waits for the device, but never makes `append` wait."""
        while (oldest := self._queue.oldest()) is not None:
            numbers = oldest.read()
            with held(self._lock):
                self._enter(oldest, numbers)

    @property
    def statistics(self) -> Statistics:
        """Exact running statistics of every number appended so far, as a copy."""
        self.settle()
        with held(self._lock):
            return copy(self._statistics)

    @property
    def dropped(self) -> int:
        """Values that are in no statistic: another thread held the list, or a device scalar was never read."""
        return self.dropped_busy + self._queue.dropped

    def newest(self, count: int | None = None) -> list[Any]:
        """Return the newest `count` values that are kept (all without one), oldest first."""
        self.settle()
        return super().__getitem__(slice(None if count is None else max(0, len(self) - max(0, count)), None))

    def __reduce__(self) -> tuple[Any, ...]:
        """Be a plain list in a copy or in another process."""
        return list, (self.newest(),)


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number)


def _settled(name: str) -> Callable[..., Any]:
    """Return a list's own method that first reads what is still on a device."""
    original = getattr(list, name)

    def method(series: RecentValues, /, *args: Any, **kwargs: Any) -> Any:
        series.settle()
        return original(series, *args, **kwargs)

    method.__name__, method.__doc__ = name, original.__doc__
    return method


for _name in (
    *("__getitem__", "__iter__", "__reversed__", "__contains__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__"),
    *("__ge__", "__add__", "__mul__", "__rmul__", "__repr__", "copy", "count", "index", "pop", "remove", "insert"),
    *("sort", "reverse", "__setitem__", "__delitem__", "__imul__"),
):
    setattr(RecentValues, _name, _settled(_name))
