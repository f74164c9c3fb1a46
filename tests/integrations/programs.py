"""Run an example or a script as its reader would, and read what it recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import stepscope
from tests.integration.processes import wait_until_written

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 500
"""Patience for a loaded machine; alone each takes a fraction of a minute."""


def run_program(path, *arguments, folder):
    """Run a program of the repository in a folder; return what it printed. Fails with its stderr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ROOT / path), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def other_share(past):
    """The share of a step that the machine left alone that no phase explains: the least over the steps with phases."""
    steps, other = past.series("step_seconds"), past.series("phase/other")
    whole = dict(zip(steps.step.tolist(), steps.value.tolist(), strict=True))
    shares = [value / whole[step] for step, value in zip(other.step.tolist(), other.value.tolist(), strict=True)]
    return min(shares)


def last_run():
    """The newest run, read once its watcher has written all of it."""
    return wait_until_written(stepscope.runs()[0])


def kinds(run):
    return [event["kind"] for event in run.events()]
