from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import stepscope.monitor
from stepscope.core.vocabulary import GIB, MIB
from stepscope.monitor import monitor_resources
from stepscope.trackers.monitor.resources import FIRST_SECONDS, Resources, allocator_memory
from tests.trackers.machines import Source

SOURCE = Path(stepscope.monitor.__file__).parents[1]
KEYS = ["cpu_percent", "cpu_count", "memory_percent", "memory_available_gb", "gpu_metrics"]
VALUES = {"cpu/usage_ratio": 0.5, "memory/used_ratio": 0.25, "memory/available_bytes": 3 * GIB}


def torch_of(devices, *, initialised=True):
    """Return loaded modules with a torch whose allocator has memory on so many GPUs."""
    cuda = SimpleNamespace(
        is_initialized=lambda: initialised,
        device_count=lambda: devices,
        memory_allocated=lambda index: (index + 1) * MIB,
        memory_reserved=lambda index: (index + 2) * MIB,
        max_memory_allocated=lambda index: (index + 3) * MIB,
    )
    return {"torch": SimpleNamespace(cuda=cuda)}


class Time:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now, self.slept = 0, []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += round(seconds * 1e9)


@pytest.mark.promise("S0-011", "S0-012")
def test_this_machine_is_read_under_the_documents_keys():
    """Processor and memory are percentages, memory is in GiB."""
    found = monitor_resources()
    assert list(found) == KEYS
    assert 0 <= found["cpu_percent"] <= 100
    assert 0 < found["memory_percent"] <= 100
    assert found["cpu_count"] >= 1
    assert found["memory_available_gb"] > 0


@pytest.mark.promise("S0-012")
def test_values_are_converted():
    """Ratios become percent, bytes GiB of 1024**3."""
    time = Time()
    found = Resources(lambda: [Source(VALUES)], modules={}, now=time, sleep=time.sleep).read()
    assert [found[key] for key in (KEYS[0], *KEYS[2:])] == [50.0, 25.0, 3.0, {}]


@pytest.mark.promise("S0-015")
def test_only_the_first_call_waits_and_not_for_a_second():
    """The first call waits 50 ms, later ones not at all; two in a row share one measurement."""
    time, source = Time(), Source(VALUES)
    resources = Resources(lambda: [source], modules={}, now=time, sleep=time.sleep)
    resources.read()
    source.values["cpu/usage_ratio"] = 1.0
    assert resources.read()["cpu_percent"] == 50.0
    time.now += 10**9
    assert resources.read()["cpu_percent"] == 100.0
    assert time.slept == [FIRST_SECONDS]


@pytest.mark.promise("S0-013", "X-04")
def test_the_allocators_memory_is_in_mib_by_gpu():
    """Each GPU has what torch's allocator gave out, holds and had given out at most."""
    found = allocator_memory(torch_of(2))
    assert found["gpu_1"] == {"memory_allocated": 2.0, "memory_reserved": 3.0, "max_memory_allocated": 4.0}
    assert list(found) == ["gpu_0", "gpu_1"]


@pytest.mark.promise("S0-014")
def test_a_process_that_does_not_use_cuda_has_no_gpu_metrics():
    """Without torch, with a torch that has not started CUDA, and with a broken one the answer is empty."""
    broken = torch_of(1)
    broken["torch"].cuda.memory_allocated = lambda index: (_ for _ in ()).throw(RuntimeError("device lost"))
    assert [allocator_memory(modules) for modules in ({}, torch_of(2, initialised=False), broken)] == [{}, {}, {}]


@pytest.mark.promise("S0-016")
def test_torch_is_not_imported():
    """Reading resources works without torch, and does not load it where it is installed."""
    code = "import sys; from stepscope.monitor import monitor_resources as m; m(); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_figure_that_nobody_tells_is_nan():
    """A machine without these files has figures that are not numbers, and no error."""
    time = Time()
    found = Resources(lambda: [Source(error=OSError("gone"))], modules={}, now=time, sleep=time.sleep).read()
    assert math.isnan(found["cpu_percent"])
    assert math.isnan(found["memory_available_gb"])
