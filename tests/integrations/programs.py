"""Run an example or a script as its reader would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 200
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
    """The share of the steps' time that no phase explains."""
    return past.series("phase/other").value.sum() / past.series("step_seconds").value.sum()
