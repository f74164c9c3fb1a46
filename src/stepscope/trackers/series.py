"""The values of one metric kept in process: the newest ones, and exact statistics over all of them."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import overload

from stepscope.trackers.device_queue import DeviceQueue
from stepscope.trackers.scalar import DeviceScalar, take
from stepscope.trackers.statistics import Statistics

WAIT_SECONDS = 0.02
"""How long a thread waits for another one; past that a value is dropped and counted."""
_LARGEST_EXACT = 2**53


class Series(Sequence[float]):
    """A list of numbers that keeps the newest `capacity` values and forgets none in its statistics.

    Behaves as a list for reading, `append`, `extend` and `clear`. A series of integers reads back as integers; once it
    got another number all read as floats. `len()` counts what is kept, `recorded` what was ever appended. A device
    tensor is read when somebody looks, not when it is appended.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, values: Iterable[object] = (), *, capacity: int = 10_000) -> None:
        """Start with the given values and keep at most `capacity` of them."""
        self.capacity = max(1, int(capacity))
        self._lock = threading.Lock()
        self._reset()
        self.refused = 0
        """Values in which there was no single number."""
        self.dropped_busy = 0
        """Values dropped because another thread held the series for too long."""
        self.extend(values)

    def _reset(self) -> None:
        self._slots = array("d")
        self._queue = DeviceQueue()
        self._integral = True
        self._statistics = Statistics()
        self.recorded = 0

    # The lock is waited for with a bound, by readers too: a signal handler may interrupt its owner in this very thread.
    @contextmanager
    def _held(self) -> Iterator[bool]:
        held = self._lock.acquire(timeout=WAIT_SECONDS)
        try:
            yield held
        finally:
            if held:
                self._lock.release()

    def append(self, value: object) -> bool:
        """Add one number: Python, numpy, or a one-element tensor. False if it was refused or dropped."""
        number = take(value)
        if number is None:
            self.refused += 1
            return False
        return self.push(number)

    def push(self, number: float | DeviceScalar) -> bool:
        """Add what `take` returned. False if another thread held the series for too long."""
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            self.dropped_busy += 1
            return False
        try:
            place = self.recorded
            self.recorded = place + 1
            if isinstance(number, DeviceScalar):
                self._place(place, math.nan)
                self._queue.add(place, number)
                self._settle_ready()
            else:
                self._enter(place, number)
        finally:
            self._lock.release()
        return True

    def extend(self, values: Iterable[object]) -> None:
        """Append each value."""
        for value in values:
            self.append(value)

    def clear(self) -> None:
        """Forget values and statistics."""
        with self._held():
            self._reset()

    def _place(self, place: int, value: float) -> None:
        """Put a value at its place, unless newer values have taken the slot."""
        if place == len(self._slots) and place < self.capacity:
            self._slots.append(value)
        elif self.recorded - place <= self.capacity:
            self._slots[place % self.capacity] = value

    def _enter(self, place: int, number: float | None) -> None:
        """Count a number whose value is known."""
        if number is None:
            self.refused += 1
            return
        try:
            value = float(number)
        except OverflowError:
            value = math.copysign(math.inf, number)
        if self._integral:
            self._integral = isinstance(number, int) and abs(number) <= _LARGEST_EXACT
        self._place(place, value)
        self._statistics.add(value)

    def _settle_ready(self) -> None:
        """Enter the device scalars that can be read without waiting."""
        while (oldest := self._queue.oldest()) is not None and oldest.scalar.ready():
            for place, number in zip(oldest.places, oldest.read(), strict=True):
                self._enter(place, number)
            self._queue.remove(oldest)

    def settle(self) -> None:
        """Read every device scalar that is still pending. Waits for the device, but never keeps `append` waiting."""
        while (oldest := self._queue.oldest()) is not None:
            numbers = oldest.read()
            with self._held():
                if self._queue.remove(oldest):
                    for place, number in zip(oldest.places, numbers, strict=True):
                        self._enter(place, number)

    @property
    def statistics(self) -> Statistics:
        """Exact running statistics of every value appended so far, as a copy."""
        self.settle()
        with self._held():
            return copy(self._statistics)

    @property
    def dropped(self) -> int:
        """Values that are in no statistic: another thread was in the way, or a device scalar was never read."""
        return self.dropped_busy + self._queue.dropped

    def newest(self, count: int | None = None) -> list[float]:
        """Return the newest `count` values that are kept (all without one), oldest first."""
        known = self.recorded
        self.settle()
        with self._held():
            size = len(self._slots)
            start = self.recorded % self.capacity if size == self.capacity else 0
            values = (self._slots[start:] + self._slots[:start])[: max(0, size - (self.recorded - known))]
            integral = self._integral
        wanted = len(values) if count is None else max(0, min(count, len(values)))
        newest = values[len(values) - wanted :]
        return [value if math.isnan(value) else int(value) for value in newest] if integral else newest.tolist()

    def __len__(self) -> int:
        """Count the values that are kept."""
        return len(self._slots)

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> list[float]: ...
    def __getitem__(self, index: int | slice) -> float | list[float]:
        """Return a kept value or a list of them."""
        if index == -1:
            return self.newest(1)[0]
        return self.newest()[index]

    def __iter__(self) -> Iterator[float]:
        """Go through the kept values as they are now."""
        return iter(self.newest())

    def __eq__(self, other: object) -> bool:
        """Compare the kept values with a list or another series."""
        if isinstance(other, (list, Series)):
            return self.newest() == list(other)
        return NotImplemented

    def __repr__(self) -> str:
        """Show the kept values as a list does."""
        return repr(self.newest())
