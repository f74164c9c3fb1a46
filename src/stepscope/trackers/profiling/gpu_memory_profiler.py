"""Measure the memory of a GPU, or of this process; compare it with a baseline and test its slope."""

from __future__ import annotations

import math
import sys
import time
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.core.run_description import memory as host_memory
from stepscope.core.vocabulary import GIB
from stepscope.integrations.numerics.memory import peak_resident, resident
from stepscope.recorder.complaints import Complaints
from stepscope.trackers.metrics.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.analysis.series.leak import MemoryTrend

KEPT = 10_000
"""Measurements kept per label; when there are more, every second one is dropped, and only every second is added."""
MAX_LABELS = 100
PROCESS = "process"
_STATS = {
    "allocated_gb": "allocated_bytes.all.current",
    "reserved_gb": "reserved_bytes.all.current",
    "max_allocated_gb": "allocated_bytes.all.peak",
    "max_reserved_gb": "reserved_bytes.all.peak",
}


@dataclass(frozen=True)
class LeakReport:
    """Result of `detect_leak`. It is true if memory exceeds baseline + threshold; `is_leak` also requires growth."""

    exceeded: bool
    """Whether more than the threshold is in use above the baseline. A bigger batch does that too."""
    growing: bool
    """Whether memory keeps growing; warm-up, caches and single jumps do not count."""
    grown_gb: float
    """GiB in use above the baseline; NaN if there is none."""
    threshold_gb: float
    baseline_gb: float
    """GiB; NaN if nothing was measured before."""
    trend: MemoryTrend
    """The verdict of the slope, with its evidence; `rate` in bytes per second, `left` in seconds."""

    @property
    def is_leak(self) -> bool:
        """Whether memory is above the threshold and still growing."""
        return self.exceeded and self.growing

    def __bool__(self) -> bool:
        """Return `exceeded`."""
        return self.exceeded


class GPUMemoryProfiler:
    """Measure the memory of torch's allocator on a GPU; without a GPU the resident memory of this process.

    Reads counters on the host: no device is waited for. Take measurements with the same label at the same point of the
    step, since slopes are tested by label. GB means GiB (2**30 bytes).
    """

    def __init__(
        self,
        device: Any = 0,
        *,
        modules: Mapping[str, Any] = sys.modules,
        resident: Callable[[], tuple[float, float]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Measure a device: its number, "cuda:1", a torch.device, or "cpu" for this process.

        torch is used if it is in `modules`, and never imported. `resident` returns resident memory of this process and
        its peak, in bytes.
        """
        self.device = device
        self._modules, self._resident, self._clock = modules, resident or resident_memory, clock
        self._source: str | None = None
        self._baseline: float | None = None
        self._series: dict[str, _Readings] = {}
        self._statistics = Statistics()
        self._peak = -math.inf
        self._limit: float | None = None
        self._notices = Complaints()

    @property
    def source(self) -> str:
        """What is measured: "cuda:0" or the like, or "process". Decided by the first measurement."""
        if self._source is None:
            self._source = _choose(self.device, self._modules)
        return self._source

    @property
    def baseline_gb(self) -> float:
        """GiB that were in use at the baseline; NaN before the first measurement."""
        return math.nan if self._baseline is None else self._baseline / GIB

    @property
    def peak_allocated_gb(self) -> float:
        """Highest GiB in use that the source knows of, also between measurements; NaN if nothing was measured."""
        return self._peak / GIB if self.count else math.nan

    @property
    def mean_allocated_gb(self) -> float:
        """Mean GiB in use over all measurements; NaN if there is none."""
        return self._statistics.mean / GIB if self.count else math.nan

    @property
    def count(self) -> int:
        """Measurements so far."""
        return self._statistics.count

    def measure(self, label: str = "") -> dict[str, float]:
        """Return the memory in use in GiB; without a GPU the reserved memory is NaN."""
        values = self._read()
        allocated = values["allocated_gb"]
        if math.isfinite(allocated):
            if self._baseline is None:
                self._baseline = allocated
            self._statistics.add(allocated)
            self._peak = max(self._peak, allocated, values["max_allocated_gb"])  # a NaN that is not first is ignored
            label = str(label)
            if label in self._series or len(self._series) < MAX_LABELS:
                self._series.setdefault(label, _Readings()).add(self._clock(), allocated)
            else:
                cause = f"there are {MAX_LABELS} already; use fewer labels, further ones are measured without a trend"
                self._notices.say("labels", f"cannot keep label {label[:80]!r}: {cause}")
        return {name: value / GIB for name, value in values.items()}

    def set_baseline(self) -> None:
        """Take the memory in use now as the baseline; before this call it is the first measurement."""
        allocated = self._read()["allocated_gb"]
        self._baseline = allocated if math.isfinite(allocated) else None

    def detect_leak(self, threshold_gb: float = 0.5) -> LeakReport:
        """Measure, and compare with the baseline and with earlier measurements.

        The report is true if memory is more than `threshold_gb` GiB above the baseline.
        """
        before = self.baseline_gb
        used = self.measure("detect_leak")["allocated_gb"]
        grown = used - (before if math.isfinite(before) else used)
        trend = self.trend()
        return LeakReport(grown > threshold_gb, trend.growing, grown, threshold_gb, self.baseline_gb, trend)

    def trend(self, label: str | None = None) -> MemoryTrend:
        """Test the slope of the measurements of one label; by default of the label with the most."""
        from stepscope.analysis.series.leak import assess  # loads numpy

        if label is None:
            label = max(self._series, key=lambda name: self._series[name].count, default="")
        readings = self._series.get(label)
        return assess(readings.times, readings.values, limit=self._capacity()) if readings else assess((), ())

    def _read(self) -> dict[str, float]:
        """Return the four figures in bytes, under their names in GiB; NaN where the source has none."""
        if self.source == PROCESS:
            used, peak = self._resident()
            return {**dict.fromkeys(_STATS, math.nan), "allocated_gb": used, "max_allocated_gb": peak}
        with self._notices.shield("read", f"read the memory of {self.source}", "check the device"):
            backend, number = self._backend()
            stats = backend.memory_stats(number)
            return {name: float(stats.get(key, 0)) for name, key in _STATS.items()}  # empty before the first allocation
        return dict.fromkeys(_STATS, math.nan)

    def _backend(self) -> tuple[Any, int]:
        kind, _, number = self.source.partition(":")
        return getattr(self._modules["torch"], kind), int(number)

    def _capacity(self) -> float | None:
        """Return the bytes of the device, or of this machine for this process; None if unknown."""
        if self._limit is None:
            with self._notices.shield("capacity", "read the size of the memory", "the time left is unknown"):
                if self.source == PROCESS:
                    self._limit = min((float(size) for size in host_memory().values() if size), default=None)
                else:
                    backend, number = self._backend()
                    self._limit = float(backend.get_device_properties(number).total_memory)
        return self._limit


class _Readings:
    """Times and values of one label, thinned out evenly when there are many."""

    def __init__(self) -> None:
        self.times, self.values = array("d"), array("d")
        self.count = 0
        self._every = 1

    def add(self, when: float, value: float) -> None:
        if self.count % self._every == 0:
            self.times.append(when)
            self.values.append(value)
        self.count += 1
        if len(self.times) >= KEPT:
            del self.times[1::2], self.values[1::2]
            self._every *= 2


def _choose(device: Any, modules: Mapping[str, Any]) -> str:
    """Return the device that can be measured, as "cuda:0"; "process" if there is none."""
    text = f"cuda:{device}" if isinstance(device, int) else str(device)
    kind, _, number = text.partition(":")
    backend = getattr(modules.get("torch"), kind, None)
    try:
        if backend is None or not hasattr(backend, "memory_stats") or not backend.is_available():
            return PROCESS
        index = int(number or backend.current_device())
        return f"{kind}:{index}" if index < backend.device_count() else PROCESS
    except (RuntimeError, AssertionError, ValueError, AttributeError):  # half-imported, or a driver in trouble
        return PROCESS


def resident_memory() -> tuple[float, float]:
    """Return the current and the peak resident memory of this process in bytes; NaN if unavailable."""
    current, peak = resident(), peak_resident()
    return math.nan if current is None else float(current), math.nan if peak is None else float(peak)
