from __future__ import annotations

import math
import time

import pytest

from stepscope.integrations.numerics import memory
from stepscope.profiling import GPUMemoryProfiler
from stepscope.trackers.profiling import gpu_memory_profiler
from tests.fakes import Clock
from tests.trackers.memory_sources import GIB, Gpu


@pytest.fixture
def gpu():
    return Gpu()


@pytest.fixture
def profiler(gpu):
    return GPUMemoryProfiler(device=0, modules=gpu.modules, clock=Clock())


@pytest.mark.promise("S4-002", "S4-003")
def test_measures_the_allocator(gpu, profiler):
    """A measurement has what the allocator has in use and reserved, and both peaks, in GiB."""
    gpu.allocated, gpu.reserved, gpu.peak = 12.5 * GIB, 14.0 * GIB, 15.2 * GIB
    stats = profiler.measure("after_forward")
    assert stats == {"allocated_gb": 12.5, "reserved_gb": 14.0, "max_allocated_gb": 15.2, "max_reserved_gb": 14.0}
    assert profiler.source == "cuda:0"


def test_one_measurement_reads_the_device_once_and_waits_for_nothing(gpu, profiler):
    """A measurement reads the allocator's counters once, and never waits for the device."""
    profiler.measure("x")
    assert (gpu.reads, gpu.waits) == (1, 0)


@pytest.mark.promise("S4-004", "S4-005")
def test_leak_is_memory_beyond_baseline_and_threshold(gpu, profiler):
    """A report is true once more than the threshold is in use above the baseline, and not before."""
    gpu.allocated = 10.5 * GIB
    profiler.set_baseline()
    gpu.allocated = 10.9 * GIB
    assert not profiler.detect_leak(threshold_gb=0.5)
    gpu.allocated = 11.1 * GIB
    report = profiler.detect_leak(threshold_gb=0.5)
    assert report
    assert report.grown_gb == pytest.approx(0.6)
    assert profiler.baseline_gb == 10.5


@pytest.mark.promise("S4-005")
def test_cache_is_no_leak(gpu, profiler):
    """What the allocator only reserves, its cache, is not counted as in use."""
    profiler.set_baseline()
    gpu.reserved = 40.0 * GIB
    assert not profiler.detect_leak()


@pytest.mark.promise("S4-005")
def test_slope_tells_a_leak_from_a_bigger_batch(gpu):
    """Memory above the threshold is a leak only if it keeps growing: a bigger batch exceeds and is none."""
    verdicts = {}
    for name, growth in (("batch", lambda step: 2.0 * GIB * (step > 50)), ("leak", lambda step: 0.02 * GIB * step)):
        clock = Clock()
        profiler = GPUMemoryProfiler(modules=gpu.modules, clock=clock)
        gpu.allocated = 10 * GIB
        profiler.set_baseline()
        for step in range(100):
            clock.now += 1.0
            gpu.allocated = 10 * GIB + growth(step)
            profiler.measure("end of step")
        report = profiler.detect_leak(threshold_gb=0.5)
        verdicts[name] = (bool(report), report.is_leak, report.trend.verdict)
    assert verdicts == {"batch": (True, False, "jump"), "leak": (True, True, "growth")}


def test_leak_says_how_long_memory_lasts(gpu):
    """The verdict on a leak tells its rate, and the seconds until the device is full."""
    clock = Clock()
    profiler = GPUMemoryProfiler(modules=gpu.modules, clock=clock)
    for _ in range(100):
        clock.now += 1.0
        gpu.allocated += 0.1 * GIB
        profiler.measure()
    trend = profiler.detect_leak().trend
    assert trend.rate == pytest.approx(0.1 * GIB, rel=0.01)
    assert trend.left == pytest.approx((80 - 10) / 0.1, rel=0.02)


@pytest.mark.promise("S4-006")
def test_without_a_baseline_the_first_measurement_is_one(gpu, profiler):
    """Before a baseline is set nothing is a leak; from then on the first measurement serves as baseline."""
    gpu.allocated = 3 * GIB
    assert not profiler.detect_leak()
    assert profiler.baseline_gb == 3.0
    gpu.allocated = 4 * GIB
    assert profiler.detect_leak()


@pytest.mark.promise("S4-006")
@pytest.mark.parametrize("modules", [{}, {"torch": None}, Gpu(count=0).modules], ids=["no torch", "half", "no GPU"])
def test_without_a_gpu_it_measures_this_process(modules):
    """Without a GPU the process is measured: resident memory and its peak; what there is not is NaN, never 0."""
    profiler = GPUMemoryProfiler(0, modules=modules, resident=lambda: (2.0 * GIB, 3.0 * GIB))
    stats = profiler.measure("x")
    assert (stats["allocated_gb"], stats["max_allocated_gb"]) == (2.0, 3.0)
    assert math.isnan(stats["reserved_gb"])
    assert profiler.source == "process"


def test_this_process_has_memory():
    """The memory of a real process is read from the system: at least a megabyte, and not above its peak."""
    resident, peak = gpu_memory_profiler.resident_memory()
    assert 1e6 < resident <= peak


def test_system_that_does_not_tell(tmp_path):
    """Without figures from the system everything is NaN, and nothing is a leak."""
    assert memory.resident(tmp_path / "absent") is None
    profiler = GPUMemoryProfiler(modules={}, resident=lambda: (math.nan, math.nan))
    assert not profiler.detect_leak()
    assert math.isnan(profiler.baseline_gb)


def test_device_in_trouble_is_told_once(gpu, profiler, capsys):
    """A device that fails raises nothing: measurements are NaN, and the reason is told once."""
    profiler.measure("x")
    gpu.broken = True
    assert math.isnan(profiler.measure("x")["allocated_gb"])
    profiler.measure("x")
    assert capsys.readouterr().err.count("cannot read the memory of cuda:0") == 1


@pytest.mark.parametrize(
    ("device", "source"), [("cuda:1", "cuda:1"), ("cuda", "cuda:0"), ("cpu", "process"), (7, "process")]
)
def test_device_has_several_spellings(device, source):
    """A device is a number or a text; one that is not there means this process."""
    assert GPUMemoryProfiler(device, modules=Gpu(count=2).modules).source == source


def test_memory_of_measurements_is_bounded(gpu, monkeypatch, capsys):
    """Many measurements are thinned out evenly, and labels beyond the limit are told once."""
    monkeypatch.setattr(gpu_memory_profiler, "KEPT", 64)
    monkeypatch.setattr(gpu_memory_profiler, "MAX_LABELS", 2)
    clock = Clock()
    profiler = GPUMemoryProfiler(modules=gpu.modules, clock=clock)
    for _ in range(5000):
        clock.now += 1.0
        gpu.allocated += 0.001 * GIB
        profiler.measure("a")
    assert len(profiler._series["a"].times) <= 64
    assert profiler.trend("a").growing
    for label in "bcd":
        profiler.measure(label)
    assert capsys.readouterr().err.count("cannot keep label") == 1


def test_unknown_label_has_no_verdict(profiler):
    """The slope of a label that was never measured is unknown."""
    assert profiler.trend("nothing").verdict == profiler.trend().verdict == "unknown"


@pytest.mark.promise("S4-050")
def test_cost_of_a_measurement_of_this_process():
    """A measurement costs little more than to read the process's memory once: below 0.1 ms here, and 1 % of 10 ms."""
    profiler = GPUMemoryProfiler(modules={})

    def seconds(call):
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    def read():
        with open("/proc/self/status", "rb", buffering=0) as file:
            file.read()

    measured, plain = [], []
    for _ in range(300):  # in turn: what a busy machine does to one it does to the other
        measured.append(seconds(lambda: profiler.measure("x")))
        plain.append(seconds(read))
    assert min(measured) < 10 * min(plain)
