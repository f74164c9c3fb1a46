"""The memory beside each step."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from stepscope.trackers.monitor.resources import FRESH_NS, StepMemory
from stepscope.trackers.monitor.training_metrics import TrainingMetrics


class Cuda:
    """torch.cuda of a process that has 64 MiB in use."""

    def __init__(self, *, started=True):
        self.started, self.asked = started, 0

    def is_initialized(self):
        return self.started

    def memory_allocated(self):
        self.asked += 1
        return 64 * 2**20


@pytest.fixture
def statm(tmp_path):
    """The kernel's file of a process with 100 resident pages."""
    file = tmp_path / "statm"
    file.write_text("900 100 5 1 0 50 0\n")
    return str(file)


def test_memory_is_read_at_most_ten_times_a_second(statm):
    """Steps within a tenth of a second share one reading; CUDA that was not started is not touched."""
    now, cuda = [0], Cuda()
    memory = StepMemory(lambda: now[0], statm, {"torch": SimpleNamespace(cuda=cuda)})
    steps = [TrainingMetrics() for _ in range(3)]
    for step, now[0] in zip(steps, (1, FRESH_NS, 2 * FRESH_NS), strict=True):
        memory.fill(step)
    assert [step.gpu_memory_mb for step in steps] == [64.0] * 3
    assert [step.cpu_memory_mb for step in steps] == [100 * os.sysconf("SC_PAGE_SIZE") / 2**20] * 3
    assert cuda.asked == 2


@pytest.mark.parametrize(
    "modules", [{}, {"torch": SimpleNamespace()}, {"torch": SimpleNamespace(cuda=Cuda(started=False))}]
)
def test_what_cannot_be_read_is_absent(modules):
    """Without /proc or CUDA nothing is filled in."""
    step = TrainingMetrics()
    StepMemory(lambda: 0, "/nowhere", modules).fill(step)
    assert (step.cpu_memory_mb, step.gpu_memory_mb) == (None, None)
