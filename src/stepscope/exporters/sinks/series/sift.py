"""Find the samples that an ordered server refuses, when one of them makes it refuse all that come with it.

Prometheus takes a 1.0 message as a whole or not at all. What it refuses is old: before the newest sample of the
series, or before all that it keeps in memory. So the samples of one rank are fine from some time on, and a search by
halves finds that time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.exporters.sinks.series.remote_write_message import Samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

TOO_OLD_TIME = 1
"""A time, in milliseconds, that is too old for any server."""
TOO_OLD = ("out of bounds", "too old sample")
"""How Prometheus begins its answer to such a time: without, and with a window for samples out of order."""


def sift(samples: Samples, sources: NDArray[np.int64], attempt: Callable[[Samples], str]) -> int:
    """Send all samples that the server takes; return how many it does not.

    `sources` has a row for each sample: the rank and attempt that recorded it. `attempt` sends samples and returns
    why they were refused, empty if they were taken.
    """
    refused = 0
    _, group = np.unique(sources, axis=0, return_inverse=True)
    group = group.reshape(-1)
    for one in range(int(group.max()) + 1):
        refused += _sifted(samples.select(group == one), attempt)
    return refused


def _sifted(samples: Samples, attempt: Callable[[Samples], str]) -> int:
    """Send the newest of some samples that have one threshold, as many as the server takes; return the others' number.

    To try without storing, a sample of 1970 goes at the end: the server names the first problem that it finds.
    That cannot tell samples which are out of bounds themselves; then the first half that is taken ends the search,
    and older samples of that batch are lost beside those that were too old.
    """
    why = attempt(samples)
    if not why:
        return 0
    times = np.unique(samples.time)
    bad, good = 0, len(times)
    while good - bad > 1:
        middle = (bad + good) // 2
        part = samples.select(samples.time >= times[middle])
        if why.startswith(TOO_OLD):
            if not attempt(part):
                return len(samples) - len(part)
            bad = middle
        elif _would_take(part, attempt):
            good = middle
        else:
            bad = middle
    rest = samples.select(samples.time >= times[good]) if good < len(times) else None
    return len(samples) if rest is None else len(samples) - len(rest) + _sifted(rest, attempt)


def _would_take(samples: Samples, attempt: Callable[[Samples], str]) -> bool:
    """Return whether the server would take samples, without storing any."""
    first = samples.series[:1]  # after the last series, so that its sample is the last that the server looks at
    poisoned = Samples(
        np.concatenate([samples.series, first]),
        np.append(samples.time, TOO_OLD_TIME),
        np.append(samples.value, 0.0),
    )
    return attempt(poisoned).startswith(TOO_OLD)
