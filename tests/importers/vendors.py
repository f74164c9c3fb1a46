"""Real trackers that write real files: each in a child of its own, because they start threads and pin packages."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[2] / ".venv-bridges/bin/python"


def vendor(script, folder, **environment):
    """Run a script with all trackers in a folder that is also its home; return the JSON that it prints last."""
    if not PYTHON.exists():
        pytest.skip("make bridges-env was not run")
    known = {key: value for key, value in os.environ.items() if not key.startswith(("COVERAGE", "PYTEST"))}
    given = {**known, "HOME": str(folder), "HF_HUB_OFFLINE": "1", "MPLCONFIGDIR": str(folder), **environment}
    done = subprocess.run([PYTHON, "-c", script], cwd=folder, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def texts(values):
    """Return numbers as texts that can be compared: NaN equals itself, 1 equals 1.0."""
    return [repr(float(value)) for value in values]
