from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from stepscope.core.vocabulary import BY_NAME, pattern_of
from stepscope.integrations.numerics.memory import DeviceMemory, host_memory, largest_free
from tests.fakes import FakeRun


class Cuda:
    """Two GPUs, the second of which this process does not use; every call that would start or stop one is refused."""

    def __init__(self, started=True):
        self.started, self.allocated, self.snapshots = started, 100, 0

    def is_initialized(self):
        return self.started

    def device_count(self):
        assert self.started
        return 2

    def memory_stats_as_nested_dict(self, index):
        assert self.started
        if index:
            return {"reserved_bytes": {"all": {"current": 0, "peak": 0}}}
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": 150}},
            "reserved_bytes": {"all": {"current": 200, "peak": 200}},
            "inactive_split_bytes": {"all": {"current": 50, "peak": 60}},
        }

    def memory_snapshot(self, include_traces=True):
        self.snapshots += 1
        blocks = [{"size": 100, "state": "active_allocated"}, {"size": 60, "state": "inactive"}]
        return [{"device": 0, "blocks": blocks}]


def memory(cuda, every=1):
    run = FakeRun()
    return run, DeviceMemory(run, every, budget=None, torch=SimpleNamespace(cuda=cuda), host=dict)


@pytest.mark.promise("S1-003")
def test_allocator_values():
    """Allocated, reserved, peak, fragmentation and largest free block of each GPU in use are recorded."""
    run, watch = memory(Cuda())
    watch.step_end()
    assert run.logged() == [
        {
            "gpu/0/memory_allocated_bytes": 100,
            "gpu/0/memory_reserved_bytes": 200,
            "gpu/0/memory_peak_bytes": 150,
            "gpu/0/memory_fragmentation_ratio": 0.25,
            "gpu/0/memory_largest_free_bytes": 60,
        }
    ]
    assert all(pattern_of(name) in BY_NAME for name in run.logged()[0])


def test_snapshots_are_rare():
    """The look at every block is taken far less often than the rest."""
    cuda = Cuda()
    run, watch = memory(cuda)
    for _ in range(41):
        watch.step_end()
    assert (len(run.rows), cuda.snapshots) == (41, 3)


def test_nothing_before_cuda_starts():
    """Where CUDA is not in use nothing is asked of it, and nothing is recorded of GPUs."""
    cuda = Cuda(started=False)
    run, watch = memory(cuda)
    watch.phase_end("forward")
    watch.step_end()
    assert run.logged() == [{}]
    assert (run.events, watch.watching) == ([], False)


def test_phases():
    """What is allocated after each phase is recorded in the steps that are looked at, and costs nothing in others."""
    cuda = Cuda()
    run, watch = memory(cuda, every=2)
    for _ in range(4):
        cuda.allocated = 300
        watch.phase_end("forward")
        cuda.allocated = 120
        watch.phase_end("optimizer")
        watch.step_end()
    with_phases = [row for row in run.logged() if "gpu/0/memory_after_forward_bytes" in row]
    assert len(run.rows) == 2
    assert [
        (row["gpu/0/memory_after_forward_bytes"], row["gpu/0/memory_after_optimizer_bytes"]) for row in with_phases
    ] == [(300, 120)]


@pytest.mark.promise("S1-003")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_host_memory():
    """The resident memory of the process, and its peak, are recorded in bytes."""
    row = host_memory()
    assert 2**20 < row["memory/resident_bytes"] <= row["memory/peak_bytes"] * 1.1
    assert all(name in BY_NAME for name in row)


def test_trouble_stays_inside():
    """A driver that fails is told, given up after three times, and never raises."""
    cuda = Cuda()
    cuda.memory_stats_as_nested_dict = lambda index: 1 / 0
    run, watch = memory(cuda)
    for _ in range(5):
        watch.step_end()
    assert run.kinds() == ["measurement_failed"] * 2


def test_largest_free_block_per_gpu():
    """Each GPU has a largest free block of its own; one without a free block has 0."""
    segments = [
        {"device": 0, "blocks": [{"size": 5, "state": "inactive"}, {"size": 9, "state": "active_allocated"}]},
        {"device": 0, "blocks": [{"size": 7, "state": "inactive"}]},
        {"device": 1, "blocks": []},
    ]
    assert largest_free(segments) == {0: 7.0, 1: 0.0}
