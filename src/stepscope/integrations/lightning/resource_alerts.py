"""The resource callback's alerts: a lasting condition is reported once, and again only after it was over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.remedies import remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BATCHES = 30
"""Batches in a row that a value must be beyond its threshold."""
SAMPLES = 3
"""Different samples among them at least: batches may be much faster than the machine is looked at."""
HYSTERESIS = 0.05
"""Share by which a value has to be better than its threshold before it counts as well again."""
HOT = 80.0
"""Degrees Celsius."""


class Told(NamedTuple):
    """The message about a lasting condition."""

    text: str
    remedy: str
    """What to do, in the words of the diagnosis."""


class Judged(NamedTuple):
    """One value held against its threshold."""

    name: str
    text: str
    """Its message, without the duration."""
    bad: bool
    well: bool
    remedy: str


@dataclass
class _Lasting:
    """For how long something has been bad."""

    batches: int = 0
    samples: int = 0
    told: bool = False


@dataclass
class ResourceAlerts:
    """Counts batches; for one thread."""

    options: Mapping[str, bool | float]
    """As the callback has them: `alert_gpu_underutilization`, `gpu_util_threshold` and so on."""
    batches: int = BATCHES
    hysteresis: float = HYSTERESIS
    _lasting: dict[str, _Lasting] = field(default_factory=dict)
    _last: Mapping[str, float] | None = None

    def look(self, values: Mapping[str, float]) -> list[Told]:
        """Take the newest sample at the end of a batch, the same again if there is no newer; return what to tell."""
        is_new, self._last = values is not self._last, values
        found = []
        for judged in self._judge(values):
            state = self._lasting.setdefault(judged.name, _Lasting())
            if not judged.bad:
                state.batches = state.samples = 0
                state.told = state.told and not judged.well
                continue
            state.batches += 1
            state.samples += is_new
            if state.batches >= self.batches and state.samples >= min(SAMPLES, self.batches) and not state.told:
                state.told = True
                found.append(Told(f"{judged.text} for {state.batches} batches", judged.remedy))
        return found

    def _judge(self, values: Mapping[str, float]) -> Iterator[Judged]:
        yield from self._gpus(values)
        used, total = values.get("memory/used_bytes"), values.get("memory/total_bytes")
        ratio = values.get("memory/used_ratio", used / total if used is not None and total else None)
        if self.options["alert_memory_pressure"] and ratio is not None:
            most = float(self.options["memory_threshold"])
            yield self._above("memory", "memory usage", ratio, most, remedy("oom", "host"))
        waiting = values.get("cpu/iowait_ratio")
        if self.options["alert_io_bottleneck"] and waiting is not None:
            most = float(self.options["io_wait_threshold"])
            yield self._above("io", "time waiting on disk", waiting, most, remedy("input_bound", "disk"))

    def _gpus(self, values: Mapping[str, float]) -> Iterator[Judged]:
        """Judge each GPU; one of several is called by its number."""
        least = float(self.options["gpu_util_threshold"])
        numbers = sorted(
            {int(name.split("/")[1]) for name in values if name.startswith("gpu/") and name[4].isdecimal()}
        )
        for number in numbers:
            which = f"GPU {number}" if len(numbers) > 1 else "GPU"
            busy, heat = (values.get(f"gpu/{number}/{name}") for name in ("utilization_ratio", "temperature_celsius"))
            if busy is not None and self.options["alert_gpu_underutilization"]:
                text = f"{which} utilization below {least * 100:.0f}%"
                well = busy >= min(1.0, least * (1 + self.hysteresis))
                yield Judged(f"busy {number}", text, busy < least, well, remedy("gpu_idle"))
            if heat is not None:
                cool = heat <= HOT * (1 - self.hysteresis)
                text, advice = f"{which} temperature above {HOT:.0f}°C", remedy("gpu_throttled", "heat")
                yield Judged(f"heat {number}", text, heat > HOT, cool, advice)

    def _above(self, name: str, what: str, value: float, most: float, advice: str) -> Judged:
        well = value <= most * (1 - self.hysteresis)
        return Judged(name, f"{what} above {most * 100:.0f}%", value > most, well, advice)
