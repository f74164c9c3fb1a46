"""The pause between two ticks of a watcher, and what ends it early: a trainer that exits, a ring that fills up."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepscope.core.feed import Feed
    from stepscope.store.drain import Stream
    from stepscope.watcher.death import Trainee


def wakers(trainees: Iterable[Trainee], streams: Iterable[Stream]) -> list[int]:
    """Return the descriptors that become readable when the pause should end."""
    rings = [stream.waker() for stream in streams]
    return [trainee.fileno() for trainee in trainees] + [descriptor for descriptor in rings if descriptor >= 0]


def pause(usual: float, spent: float, streams: Iterable[Stream]) -> float:
    """Return the seconds to wait for the next tick: none while a ring holds more than one tick drains.

    Args:
        usual: seconds from the start of a tick to the start of the next.
        spent: seconds that this tick took.
        streams: the rings.
    """
    return 0.0 if any(stream.is_behind for stream in streams) else usual - spent


def heed(streams: Iterable[Stream]) -> None:
    """Consume the wake-up bytes of the rings."""
    for stream in streams:
        stream.heed()


class Sleeper:
    """Sleeps for a watcher, and lets its feed serve clients meanwhile."""

    def __init__(self) -> None:
        """Wait for nothing yet."""
        self._awaited: dict[int, int] = {}
        self._poll = select.poll()

    def sleep(self, seconds: float, wake: Sequence[int], feed: Feed) -> bool:
        """Sleep until `seconds` have passed or a descriptor in `wake` is readable; return whether one is."""
        end = time.monotonic() + seconds
        while True:
            ready = self._wait(max(0.0, end - time.monotonic()), wake, feed)
            feed.serve()
            if not ready.isdisjoint(wake):
                return True
            if time.monotonic() >= end:
                return False

    def _wait(self, seconds: float, wake: Sequence[int], feed: Feed) -> set[int]:
        awaited = {**feed.descriptors(), **dict.fromkeys(wake, select.POLLIN)}
        if awaited != self._awaited:  # rarely: ten times a second the same descriptors are awaited
            self._awaited, self._poll = awaited, select.poll()
            for descriptor, events in awaited.items():
                self._poll.register(descriptor, events)
        return {descriptor for descriptor, _ in self._poll.poll(seconds * 1000)}
