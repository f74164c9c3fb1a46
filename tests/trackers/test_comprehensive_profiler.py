from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import timeit
from datetime import datetime
from pathlib import Path

import pytest

from stepscope.profiling import ComprehensiveProfiler, GPUMemoryProfiler, ThroughputTracker, TrainingTimer
from tests.fakes import Clock
from tests.trackers.memory_sources import GIB, Gpu


class Loop:
    """A profiler on clocks and a device of the test's own."""

    def __init__(self):
        self.clock, self.gpu = Clock(), Gpu()
        self.profiler = ComprehensiveProfiler(
            device=0,
            memory=GPUMemoryProfiler(0, modules=self.gpu.modules, clock=self.clock),
            timer=TrainingTimer(0, clock=self.clock, modules={}),
            throughput=ThroughputTracker(100, clock=self.clock),
            clock=self.clock,
            wall=lambda: 1_764_504_000.0,
        )

    def train(self, iterations, grow=0.0):
        for _ in range(iterations):
            self.profiler.start_iteration()
            self.clock.now += 0.5
            self.gpu.allocated += grow * GIB
            self.profiler.end_iteration(num_samples=4, num_tokens=600)


@pytest.fixture
def loop():
    return Loop()


@pytest.mark.promise("S4-013", "S4-015")
def test_export_has_the_documents_fields(loop, tmp_path):
    """The file has timestamp, device, memory, timing and throughput under the names that the documents use."""
    loop.gpu.allocated = 10.5 * GIB
    loop.profiler.set_baseline()
    loop.train(10, grow=0.1)
    assert loop.profiler.export_to_json(tmp_path / "deep" / "results.json")
    facts = json.loads((tmp_path / "deep" / "results.json").read_text())
    assert datetime.fromisoformat(facts["timestamp"]).timestamp() == 1_764_504_000
    assert facts["device"] == 0
    memory = facts["memory"]
    assert memory["peak_allocated_gb"] == pytest.approx(11.5)
    assert memory["mean_allocated_gb"] == pytest.approx(11.05)
    assert memory["baseline_gb"] == 10.5
    assert facts["timing"]["iteration"]["count"] == 10
    assert facts["timing"]["iteration"]["mean_sec"] == pytest.approx(0.5)
    assert facts["throughput"]["samples_per_sec"] == pytest.approx(8.0)
    assert facts["throughput"]["tokens_per_sec"] == pytest.approx(1200.0)


@pytest.mark.promise("S4-014")
def test_it_detects_leaks(loop):
    """Baseline and leak verdict are those of the memory profiler, fed by every iteration."""
    loop.profiler.set_baseline()
    loop.train(50, grow=0.05)
    assert loop.profiler.detect_leak(threshold_gb=0.5).is_leak


@pytest.mark.promise("S4-050")
def test_own_cost_is_measured_and_reported(tmp_path):
    """The export says what the profiler costs, in all, by iteration and as a share; that is a few looks at /proc."""

    def read():
        with open("/proc/self/status", "rb", buffering=0) as file:
            file.read()

    found, plain = [], []
    for _ in range(10):  # in turn: what a busy machine does to one it does to the other
        profiler = ComprehensiveProfiler(device="cpu", clock=time.thread_time)
        for _ in range(50):
            profiler.start_iteration()
            profiler.end_iteration(num_samples=1)
        found.append(profiler.get_summary()["overhead"])
        plain.append(timeit.timeit(read, timer=time.thread_time, number=50) / 50)
    assert all(one["total_sec"] == pytest.approx(50 * one["per_iteration_sec"]) for one in found)
    assert all(0 < one["ratio"] < 1 for one in found)
    assert min(one["per_iteration_sec"] for one in found) < 10 * min(plain)


def test_end_without_start_counts_what_was_taken_in(loop, capsys):
    """An iteration that was never started has no time; that is told once, and nothing raises."""
    assert math.isnan(loop.profiler.end_iteration(num_samples=4))
    assert "cannot time an iteration" in capsys.readouterr().err
    assert loop.profiler.get_summary()["timing"] == {}


def test_iteration_that_never_ended_is_forgotten(loop):
    """An iteration that is started anew before it ended is timed from the last start."""
    loop.profiler.start_iteration()
    loop.clock.now += 100
    loop.train(1)
    timing = loop.profiler.get_summary()["timing"]["iteration"]
    assert (timing["count"], timing["mean_sec"]) == (1, 0.5)


def test_unused_profiler_exports_null(loop, tmp_path):
    """What is not known is null in the file, which is strict JSON."""
    assert loop.profiler.export_to_json(tmp_path / "empty.json")
    facts = json.loads((tmp_path / "empty.json").read_text(), parse_constant=pytest.fail)
    assert facts["memory"]["mean_allocated_gb"] is None
    assert facts["throughput"]["samples_per_sec"] is None


def test_export_that_fails_raises_nothing(loop, tmp_path, capsys):
    """A file that cannot be written is told; nothing is left of it and nothing raises."""
    (tmp_path / "file").write_text("")
    assert not loop.profiler.export_to_json(tmp_path / "file" / "results.json")
    assert "cannot write" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_parts_can_be_used_beside(loop):
    """Phases that are timed by its own timer stand in the export beside the iteration."""
    with loop.profiler.timer.time("forward"):
        loop.clock.now += 0.1
    loop.train(1)
    assert set(loop.profiler.get_summary()["timing"]) == {"forward", "iteration"}


@pytest.mark.promise("S4-001", "S4-045")
def test_profiling_and_metrics_are_apart():
    """Profiling loads neither the metrics' module nor torch, numpy or any other third-party module."""
    code = """
import sys
import stepscope.profiling as profiling
profiling.ComprehensiveProfiler, profiling.GPUMemoryProfiler, profiling.TrainingTimer, profiling.ThroughputTracker
loaded = {name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "duckdb", "psutil"}
print(sorted(loaded), "stepscope.metrics" in sys.modules)
import stepscope.metrics
"""
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.strip() == "[] False"
