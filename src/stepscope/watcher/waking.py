"""What ends the pause between two ticks of a watcher: a trainer that ends, a ring that fills up."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepscope.store.drain import Stream
    from stepscope.watcher.death import Trainee


def wakers(trainees: Iterable[Trainee], streams: Iterable[Stream]) -> list[int]:
    """Return the descriptors that become readable then."""
    rings = [stream.waker() for stream in streams]
    return [trainee.fileno() for trainee in trainees] + [descriptor for descriptor in rings if descriptor >= 0]


def pause(usual: float, spent: float, streams: Iterable[Stream]) -> float:
    """Return the seconds to wait for the next tick: none while a ring has more than one tick takes.

    Args:
        usual: seconds from the beginning of a tick to the next.
        spent: seconds that this one took.
        streams: the rings.
    """
    return 0.0 if any(stream.is_behind for stream in streams) else usual - spent


def heed(streams: Iterable[Stream]) -> None:
    """Take notice that one was readable."""
    for stream in streams:
        stream.heed()
