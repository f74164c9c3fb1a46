"""The examples for plain torch, DDP and FSDP2: they run, and next to nothing of their steps is unexplained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stepscope
from tests.integration.processes import SOURCE, free_port, until
from tests.integration.test_launchers import QUIET

pytest.importorskip("torch", reason="needs torch, which these train with")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST_OTHER = 0.05


def run(name, *arguments, ranks=0):
    """Run an example under `stepscope run`, with torchrun where it has ranks; return the recorded run."""
    import os

    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]
    command = [sys.executable, *(launcher if ranks else []), "-m", "stepscope", "run", str(EXAMPLES / name), *arguments]
    environ = {**os.environ, **QUIET, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    until(lambda: stepscope.runs() and all(info.state != "running" for info in stepscope.runs()), "the end")
    (info,) = stepscope.runs()
    return stepscope.open(info.path)


def unexplained(past, rank=0):
    """Return the share of `other` in a measured step that the machine left alone: the least of them.

    A stretch of the loop that nobody explains is in every step; a busy machine takes the processor from some.
    """
    steps, other = past.series("step_seconds", rank=rank), past.series("phase/other", rank=rank)
    whole = dict(zip(steps.step.tolist(), steps.value.tolist(), strict=True))
    shares = [value / whole[step] for step, value in zip(other.step.tolist(), other.value.tolist(), strict=True)]
    return min(shares)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.promise("S1-004")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_plain_example_is_explained(workers):
    """A script with nothing of ours in it: 96 steps, phases, evaluation and checkpoints; `other` is at most 5 %."""
    past = run("torch_example.py", workers)
    assert past.series("step_seconds").step.tolist() == list(range(96))
    assert past.series("samples").value.sum() == 3 * 4096
    names = {name for name in past.names() if name.startswith("phase/")}
    expected = {"data", "forward", "backward", "optimizer", "evaluation", "checkpoint"}
    assert {f"phase/{phase}" for phase in expected} <= names
    assert unexplained(past) <= MOST_OTHER


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "steps"), [("ddp_example.py", 32), ("fsdp2_example.py", 32)])
def test_both_ranks_of_the_distributed_examples_are_explained(name, steps):
    """DDP and FSDP2 on two ranks: one run, every step of both, their collectives found, `other` at most 5 %."""
    past = run(name, ranks=2)
    for rank in (0, 1):
        assert past.series("step_seconds", rank=rank).step.tolist() == list(range(steps))
        assert "fsdp2" not in name or len(past.series("phase/communication", rank=rank).value) >= 1
        assert unexplained(past, rank) <= MOST_OTHER
