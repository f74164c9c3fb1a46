"""When will it end: memory that runs out, a disk that fills up, and the run itself; each with its uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.finding import CRITICAL, WARNING, Facts, Finding
from stepscope.analysis.series.leak import LARGEST, MemoryTrend, assess
from stepscope.core.numbers import format_duration, format_value
from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike


HOUR, DAY = 3600.0, 86400.0
SOON = 2 * HOUR
"""Seconds below which memory or disk that runs out is critical; beyond them it is a warning, if it comes in time."""
FAR = 30 * DAY
"""Longest forecast, in seconds."""
LEAST_DISK_BYTES = 64 * 2**20
"""Rise of used space that is worth a word, in bytes: less than one small checkpoint."""
FEWEST_STEPS = 20
"""Steps of an attempt before which its end is not forecast."""
RECENT = 0.5
"""Share of the steps, from the last, that the pace is taken from: the first ones compile and warm up."""
BLOCKS = 20
"""Equal parts of these steps whose durations are compared: evaluations and checkpoints fall into each."""
STUDENT = {5: 2.57, 8: 2.31, 10: 2.23, 15: 2.13, 20: 2.09}
"""Student's quantile of the 95 % interval, by degrees of freedom."""


@dataclass(frozen=True)
class Forecast(Facts):
    """A forecast time, in seconds from the last reading, with its 95 % interval."""

    seconds: float
    low: float
    high: float | None
    """None if it may never happen."""
    text: str
    """The evidence."""


def exhaustion(trend: MemoryTrend, what: str) -> Forecast | None:
    """Return when something that grows reaches its limit; None without growth or a known limit."""
    if not trend.growing or trend.left is None or trend.left_low is None or trend.rate is None:
        return None
    return Forecast(trend.left, trend.left_low, trend.left_high, f"{what}: {trend.reason}")


def memory_leak(name: str, time: ArrayLike, value: ArrayLike, limit: float | None = None) -> Finding | None:
    """Return the finding about a series of memory readings; None if memory does not grow.

    Args:
        name: what is read, for people: "memory of rank 0", "memory of GPU 3".
        time: seconds since 1970.
        value: bytes.
        limit: bytes at which it ends.
    """
    return _leak(name, assess(time, value, limit=limit))


def shared_leaks(readings: Mapping[str, tuple[ArrayLike, ArrayLike]], limit: float | None = None) -> list[Finding]:
    """Return the findings about the memory of processes that share one machine, by name.

    They fill it together: all that grow are forecast to the same end, and what the others hold is not free.
    """
    trends = {name: assess(time, value, limit=limit) for name, (time, value) in readings.items()}
    held = sum(_held(value) for _, value in readings.values())
    joined = together(list(trends.values()), held, limit)
    told = [_leak(name, trend) for name, trend in zip(trends, joined, strict=True)]
    return [one for one in told if one is not None]


def _held(value: ArrayLike) -> float:
    """Return the last finite reading; 0 if there is none."""
    known = np.asarray(value, np.float64)
    known = known[np.isfinite(known)]
    return float(known[-1]) if len(known) else 0.0


def together(trends: Sequence[MemoryTrend], held: float, limit: float | None) -> list[MemoryTrend]:
    """Return the trends of processes that share one memory with the time left until they have filled it together.

    Args:
        trends: of each process.
        held: bytes that all of them hold by now.
        limit: bytes at which the memory ends; None if unknown.
    """
    growing = [one for one in trends if one.growing and one.rate is not None]
    if limit is None or len(trends) < 2 or not growing:
        return list(trends)
    rate, low, high = (sum(getattr(one, key) or 0.0 for one in growing) for key in ("rate", "rate_low", "rate_high"))
    room = max(0.0, limit - held)
    left, soonest = room / rate if rate > 0 else None, room / high if high > 0 else None
    latest = room / low if low > 0 else None
    return [replace(one, left=left, left_low=soonest, left_high=latest) if one.growing else one for one in trends]


def _leak(name: str, trend: MemoryTrend) -> Finding | None:
    if not trend.growing or trend.rate is None or trend.rate_low is None or trend.rate_high is None:
        return None
    soon = exhaustion(trend, name)
    rates = [format_value(rate * HOUR, "bytes") for rate in (trend.rate, trend.rate_low, trend.rate_high)]
    text = f"{name} grows by {rates[0]} per hour ({rates[1]} to {rates[2]})"
    severity = WARNING
    if soon is not None and soon.low < FAR:
        text += f"; at this rate it is full in {format_duration(soon.seconds)} ({_range(soon)})"
        severity = CRITICAL if soon.low < SOON else WARNING
    return Finding("leak", text, severity, remedy("memory_leak"), trend.facts())


def disk_full(time: ArrayLike, free: ArrayLike) -> Finding | None:
    """Return when a disk will be full, from its free bytes; None if it will not fill up soon."""
    space = np.asarray(free, np.float64)
    trend = assess(time, -space, limit=0.0, least=LEAST_DISK_BYTES)
    soon = exhaustion(trend, "space in use")
    if soon is None or soon.low > FAR or trend.rate is None:
        return None
    hourly = format_value(trend.rate * HOUR, "bytes")
    text = f"the run's disk is full in {format_duration(soon.seconds)} ({_range(soon)}): it grows by {hourly} per hour"
    return Finding("disk_full", text, CRITICAL if soon.low < SOON else WARNING, remedy("disk_full"), trend.facts())


def end_of_run(end: ArrayLike, step: ArrayLike, last_step: int, *, first_step: int = 0) -> Forecast | None:
    """Return when an attempt will have done its last step; None if too few steps are done, or it is over.

    The steps to come take as long as the recent ones, with what lies between them. The uncertainty is that of the
    mean duration of blocks of steps, and of as many blocks to come, and how much the last of them differ from all.

    Args:
        end: when each step ended, in seconds, of one rank in one attempt.
        step: its index.
        last_step: how many steps the run makes in all.
        first_step: index of the first: 0, or 1 where steps are counted from 1.
    """
    when, index = np.asarray(end, np.float64), np.asarray(step, np.float64)
    both = min(len(when), len(index))
    when, index = when[:both], index[:both]
    with np.errstate(invalid="ignore"):
        good = (np.abs(when) <= LARGEST) & (np.abs(index) <= LARGEST)
    when, index = when[good], index[good]
    if len(when) < FEWEST_STEPS:
        return None
    order = np.argsort(when, kind="stable")
    when, index = when[order], index[order]
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
    reach = _student(blocks - 1) * spread * math.sqrt(left * left / blocks + left) + remaining * abs(late - pace)
    seconds = remaining * pace
    text = f"{remaining:.0f} steps at {pace:.3g} s each, as the last {done.sum():.0f} took, pauses included"
    return Forecast(seconds, max(0.0, seconds - reach), seconds + reach, text)


def _student(freedom: int) -> float:
    return next((value for least, value in sorted(STUDENT.items()) if freedom <= least), 2.0)


def total_steps(config: Any) -> int | None:
    """Return the planned number of steps from the configuration; None if it does not say."""
    names = ("max_steps", "total_steps", "num_training_steps", "train_steps", "num_steps", "train_iters", "max_iters")
    found: dict[str, int] = {}
    waiting = [config]
    seen = 0
    while waiting and seen < 10_000:
        item = waiting.pop()
        seen += 1
        if isinstance(item, dict):
            for key, value in item.items():
                whole = isinstance(value, int) and not isinstance(value, bool)
                if key in names and whole and value > 0:
                    found.setdefault(str(key), value)
                elif isinstance(value, dict):
                    waiting.append(value)
    return next((found[name] for name in names if name in found), None)


def _range(soon: Forecast) -> str:
    return f"{format_duration(soon.low)} to {'never' if soon.high is None else format_duration(soon.high)}"
