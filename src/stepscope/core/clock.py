"""The two clocks, and the map from one to the other.

Rows carry monotonic time only; (wall, monotonic) pairs are recorded with them, and wall time is computed from the
latest pair at or before a time, so that a clock set back or forward never disorders a series.
"""

from __future__ import annotations

import functools
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Clock:
    """The clocks of the operating system, in nanoseconds; tests pass others."""

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970 UTC; may jump."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Return nanoseconds of the monotonic clock, common to all processes of this boot; never goes back."""
        return time.monotonic_ns()


@functools.lru_cache(maxsize=1)
def boot_id() -> str:
    """Return an id of this boot of this machine, which makes monotonic times comparable; else the host name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


class Pair(NamedTuple):
    """One reading of both clocks at the same time, in nanoseconds."""

    wall_ns: int
    monotonic_ns: int


def read_pair(clock: Clock) -> Pair:
    """Read both clocks: the wall clock, and the mean of the monotonic clock just before and after it."""
    before = clock.monotonic_ns()
    wall = clock.wall_ns()
    return Pair(wall, (before + clock.monotonic_ns()) // 2)


class WallMap:
    """Maps monotonic times to wall time by the latest pair at or before them (the first pair before that)."""

    def __init__(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Take (wall, monotonic) pairs in nanoseconds, in any order; of pairs with equal time the last one counts."""
        latest = {int(monotonic): int(wall) for wall, monotonic in pairs}
        self._starts = sorted(latest)
        self._offsets = [latest[start] - start for start in self._starts]

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._starts)

    def to_wall_us_array(self, monotonic_ns: Any, numpy: Any) -> Any:
        """Return microseconds since 1970 UTC for many times: an int64 array of the same shape.

        `numpy` is the module, which core does not load. Raises ValueError if there is no pair.
        """
        moments = numpy.asarray(monotonic_ns, dtype=numpy.int64)
        if not self._starts:
            raise ValueError("no pair of wall and monotonic time")
        starts = numpy.asarray(self._starts, dtype=numpy.int64)
        index = numpy.maximum(numpy.searchsorted(starts, moments, side="right") - 1, 0)
        return (moments + numpy.asarray(self._offsets, dtype=numpy.int64)[index]) // 1000


class Jump(NamedTuple):
    """A step of the wall clock that the monotonic clock did not make."""

    wall_us: int
    """Wall time after the jump, microseconds since 1970 UTC."""
    monotonic_ns: int
    """Time of the first reading after it."""
    seconds: float
    """How far the clock was set forward; negative: back."""


def jumps(pairs: Sequence[tuple[int, int]], threshold_s: float = 1.0) -> list[Jump]:
    """Return where the wall clock moved at least `threshold_s` seconds against the monotonic one.

    Pairs are (wall, monotonic) in nanoseconds. A slow drift is no jump: each pair is compared with the one before it.
    """
    ordered = sorted(((int(monotonic), int(wall)) for wall, monotonic in pairs), key=lambda item: item[0])
    found = []
    for (monotonic, wall), (next_monotonic, next_wall) in pairwise(ordered):
        moved = (next_wall - wall) - (next_monotonic - monotonic)
        if abs(moved) >= threshold_s * 1e9:
            found.append(Jump(next_wall // 1000, next_monotonic, moved / 1e9))
    return found
