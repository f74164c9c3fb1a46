"""The resource callback's alerts: a lasting condition is reported once, and again only after it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BATCHES = 30
"""Consecutive batches for which a value must be beyond its threshold."""
SAMPLES = 3
"""Minimum number of different samples among them: batches may be much faster than the sampling."""
HYSTERESIS = 0.05
"""Margin, as a share of the threshold, by which a value must recover before its condition has ended."""
HOT = 80.0
"""Degrees Celsius."""


class ResourceAlert(NamedTuple):
    """The message about a lasting condition."""

    text: str
    remedy: str


class Condition(NamedTuple):
    """One value compared with its threshold."""

    name: str
    text: str
    """The message, without the duration."""
    holds: bool
    is_over: bool
    """Whether the value has recovered by the margin."""
    remedy: str


@dataclass
class _Streak:
    """How long a condition has held."""

    batches: int = 0
    samples: int = 0
    reported: bool = False


@dataclass
class ResourceAlerts:
    """Counts the batches for which conditions hold; for one thread."""

    options: Mapping[str, bool | float]
    """The callback's options `alert_gpu_underutilization`, `gpu_util_threshold` and so on."""
    batches: int = BATCHES
    _streaks: dict[str, _Streak] = field(default_factory=dict)
    _last: Mapping[str, float] | None = None

    def look(self, values: Mapping[str, float]) -> list[ResourceAlert]:
        """Return the new alerts at the end of a batch; without a newer sample, pass the same mapping again."""
        is_new, self._last = values is not self._last, values
        found = []
        for condition in self._conditions(values):
            streak = self._streaks.setdefault(condition.name, _Streak())
            if not condition.holds:
                streak.batches = streak.samples = 0
                streak.reported = streak.reported and not condition.is_over
                continue
            streak.batches += 1
            streak.samples += is_new
            is_long = streak.batches >= self.batches and streak.samples >= min(SAMPLES, self.batches)
            if is_long and not streak.reported:
                streak.reported = True
                found.append(ResourceAlert(f"{condition.text} for {streak.batches} batches", condition.remedy))
        return found

    def _conditions(self, values: Mapping[str, float]) -> Iterator[Condition]:
        options, numbers = self.options, gpu_numbers(values)
        least = float(options["gpu_util_threshold"])
        for number in numbers:
            gpu = f"GPU {number}" if len(numbers) > 1 else "GPU"
            busy, heat = (values.get(f"gpu/{number}/{name}") for name in ("utilization_ratio", "temperature_celsius"))
            if busy is not None and options["alert_gpu_underutilization"]:
                is_over = busy >= min(1.0, least * (1 + HYSTERESIS))
                text = f"{gpu} utilization below {least:.0%}"
                yield Condition(f"busy {number}", text, busy < least, is_over, remedy("gpu_idle"))
            if heat is not None:
                text, advice = f"{gpu} temperature above {HOT:.0f}°C", remedy("gpu_throttled", "heat")
                yield _above(f"heat {number}", text, heat, HOT, advice)
        used, total = values.get("memory/used_bytes"), values.get("memory/total_bytes")
        ratio = values.get("memory/used_ratio", used / total if used is not None and total else None)
        if options["alert_memory_pressure"] and ratio is not None:
            most = float(options["memory_threshold"])
            yield _above("memory", f"memory usage above {most:.0%}", ratio, most, remedy("oom", "host"))
        waiting = values.get("cpu/iowait_ratio")
        if options["alert_io_bottleneck"] and waiting is not None:
            most = float(options["io_wait_threshold"])
            yield _above("io", f"time waiting on disk above {most:.0%}", waiting, most, remedy("input_bound", "disk"))


def _above(name: str, text: str, value: float, most: float, advice: str) -> Condition:
    return Condition(name, text, value > most, value <= most * (1 - HYSTERESIS), advice)


def gpu_numbers(values: Mapping[str, float]) -> list[int]:
    """Return the numbers of the GPUs that have values, in order."""
    return sorted({int(name.split("/")[1]) for name in values if name.startswith("gpu/") and name[4].isdecimal()})
