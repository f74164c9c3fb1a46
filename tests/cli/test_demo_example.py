from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope
from tests.integration.processes import wait_until_written

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_plain_loop_runs(tmp_path):
    """The example trains, and its run can be read: steps, phases, its loss and the metrics of its own."""
    environ = {**os.environ, "STEPSCOPE_DIR": str(tmp_path / "runs"), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "plain_loop.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    [info] = stepscope.runs(tmp_path / "runs")
    past = wait_until_written(info)
    assert past.state == "finished"
    assert past.series("loss").value[-1] < 0.5 * past.series("loss").value[0]
    assert {"phase/data", "phase/forward", "phase/backward", "tokens_per_second", "batch_size"} <= set(past.names())
