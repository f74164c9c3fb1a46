"""Forecasts, each with its uncertainty: when memory runs out, when a disk fills up, and when the run ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import CRITICAL, WARNING, Finding, WithFacts
from stepscope.analysis.series.leak import LARGEST, MemoryTrend, assess
from stepscope.analysis.series.robust import finite, finite_pairs
from stepscope.core.numbers import format_duration, format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike


HOUR, DAY = 3600.0, 86400.0
SOON = 2 * HOUR
"""Running out within this many seconds is critical; later it is a warning."""
FAR = 30 * DAY
"""Longest forecast, in seconds."""
LEAST_DISK_BYTES = 64 * 2**20
"""Minimum rise of the used space, in bytes: less than one small checkpoint."""
FEWEST_STEPS = 20
"""Minimum steps of an attempt to forecast its end."""
RECENT = 0.5
"""Share of the steps, from the last, that the pace is taken from: the first ones compile and warm up."""
BLOCKS = 20
"""Equal parts of these steps whose durations are compared; each contains evaluations and checkpoints."""
STUDENT = {5: 2.57, 8: 2.31, 10: 2.23, 15: 2.13, 20: 2.09}
"""Student's quantile of the 95 % interval, by degrees of freedom, ascending."""


@dataclass(frozen=True)
class Forecast(WithFacts):
    """A time in seconds from the last reading, with its 95 % interval."""

    seconds: float
    low: float
    high: float | None
    """None if it may never happen."""
    text: str
    """The evidence."""


def memory_leak(name: str, time: ArrayLike, value: ArrayLike, limit: float | None = None) -> Finding | None:
    """Return the finding about memory readings in bytes, at times in seconds; None if memory does not grow.

    `name` says what was read, as in "memory of GPU 3"; `limit` is the number of bytes available, None if unknown.
    """
    return _leak(name, assess(time, value, limit=limit))


def shared_leaks(readings: Mapping[str, tuple[ArrayLike, ArrayLike]], limit: float | None = None) -> list[Finding]:
    """Return the findings about the memory of processes that share one machine, by name.

    They fill it together: all that grow get the same forecast, and what the others hold is not free.
    """
    trends = [assess(time, value, limit=limit) for time, value in readings.values()]
    known = [finite(value) for _, value in readings.values()]
    held = sum(float(value[places[-1]]) for value, places in known if len(places))
    found = [_leak(name, trend) for name, trend in zip(readings, together(trends, held, limit), strict=True)]
    return [one for one in found if one is not None]


def together(trends: Sequence[MemoryTrend], held: float, limit: float | None) -> list[MemoryTrend]:
    """Return the trends of processes that share one memory, with the time left until they fill it together.

    `held` is what all of them hold now, `limit` the size of the memory, in bytes.
    """
    growing = [one for one in trends if one.growing and one.rate is not None]
    if limit is None or len(trends) < 2 or not growing:
        return list(trends)
    rate, low, high = (sum(getattr(one, key) or 0.0 for one in growing) for key in ("rate", "rate_low", "rate_high"))
    room = max(0.0, limit - held)
    left, soonest, latest = (room / one if one > 0 else None for one in (rate, high, low))
    return [replace(one, left=left, left_low=soonest, left_high=latest) if one.growing else one for one in trends]


def _leak(name: str, trend: MemoryTrend) -> Finding | None:
    if not trend.growing or trend.rate is None or trend.rate_low is None or trend.rate_high is None:
        return None
    rates = [format_value(rate * HOUR, "bytes") for rate in (trend.rate, trend.rate_low, trend.rate_high)]
    text = f"{name} grows by {rates[0]} per hour ({rates[1]} to {rates[2]})"
    left, severity = _time_left(trend)
    text += f"; at this rate it is full in {left}" if left else ""
    return Finding("leak", text, severity, remedy("memory_leak"), trend.facts())


def _time_left(trend: MemoryTrend) -> tuple[str, str]:
    """Return in words how long growth can go on, and its severity; empty without a limit, or if it is far away."""
    if trend.left is None or trend.left_low is None or trend.left_low > FAR:
        return "", WARNING
    latest = "never" if trend.left_high is None else format_duration(trend.left_high)
    text = f"{format_duration(trend.left)} ({format_duration(trend.left_low)} to {latest})"
    return text, CRITICAL if trend.left_low < SOON else WARNING


def disk_full(time: ArrayLike, free: ArrayLike) -> Finding | None:
    """Return when a disk will be full, from its free bytes; None if it will not fill up within `FAR`."""
    trend = assess(time, -np.asarray(free, np.float64), limit=0.0, least=LEAST_DISK_BYTES)
    left, severity = _time_left(trend)
    if not left or trend.rate is None:
        return None
    text = f"the run's disk is full in {left}: it grows by {format_value(trend.rate * HOUR, 'bytes')} per hour"
    return Finding("disk_full", text, severity, remedy("disk_full"), trend.facts())


def end_of_run(end: ArrayLike, step: ArrayLike, last_step: int, *, first_step: int = 0) -> Forecast | None:
    """Return when an attempt will have done its last step; None if too few steps are done, or it is over.

    The remaining steps are expected to take as long as the recent ones, pauses included. The uncertainty has three
    parts: the mean duration of blocks of steps, as many blocks to come, and how much the last blocks differ from all.

    Args:
        end: when each step of one rank in one attempt ended, in seconds.
        step: its index.
        last_step: number of steps of the run.
        first_step: index of the first step: 0, or 1 if steps are counted from 1.
    """
    when, index = finite_pairs(end, step, LARGEST)
    if len(when) < FEWEST_STEPS:
        return None
    remaining = last_step - 1 + first_step - float(index[-1])
    recent = slice(min(len(when) - FEWEST_STEPS, int(len(when) * (1 - RECENT))), None)
    when, index = when[recent], index[recent]
    blocks = min(BLOCKS, len(when) - 1)
    places = np.linspace(0, len(when) - 1, blocks + 1).round().astype(int)
    done, lasted = np.diff(index[places]), np.diff(when[places])
    if remaining <= 0 or (done <= 0).any() or lasted.sum() <= 0:
        return None
    paces = lasted / done
    pace = float(lasted.sum() / done.sum())
    size = float(done.mean())
    left = remaining / size
    spread = float(paces.std(ddof=1)) * size if blocks > 1 else math.inf
    late = float(lasted[blocks // 2 :].sum() / done[blocks // 2 :].sum())
    quantile = next((value for most, value in STUDENT.items() if blocks - 1 <= most), 2.0)
    reach = quantile * spread * math.sqrt(left * left / blocks + left) + remaining * abs(late - pace)
    seconds = remaining * pace
    text = f"{remaining:.0f} steps at {pace:.3g} s each, as the last {done.sum():.0f} took, pauses included"
    return Forecast(seconds, max(0.0, seconds - reach), seconds + reach, text)


def total_steps(config: Any) -> int | None:
    """Return the planned number of steps from the configuration; None if it does not say."""
    names = ("max_steps", "total_steps", "num_training_steps", "train_steps", "num_steps", "train_iters", "max_iters")
    found: dict[str, int] = {}
    waiting = [config] if isinstance(config, dict) else []
    seen = 0
    while waiting and seen < 10_000:
        seen += 1
        for key, value in waiting.pop().items():
            if key in names and isinstance(value, int) and not isinstance(value, bool) and value > 0:
                found.setdefault(str(key), value)
            elif isinstance(value, dict):
                waiting.append(value)
    return next((found[name] for name in names if name in found), None)
