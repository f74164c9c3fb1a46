"""Run every check that takes seconds, two at a time, one line each: `python tools/check.py`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sources import ROOT

PYTHON = sys.executable


def commands(scratch: Path) -> dict[str, list[str]]:
    """Return the command of each check, the longest first; the documentation is built into a scratch folder."""
    return {
        "types": [PYTHON, "-m", "mypy"],
        "docs": [PYTHON, "-m", "mkdocs", "build", "--strict", "--site-dir", str(scratch / "site")],
        "page": [PYTHON, "tools/page.py", "check"],
        "contract": [PYTHON, "tools/contract.py", "--check"],
        "lint": [PYTHON, "-m", "ruff", "check", "--output-format", "concise", "."],
        "format": [PYTHON, "-m", "ruff", "format", "--check", "."],
        "layers": [PYTHON, "tools/check_layers.py"],
        "errors": [PYTHON, "tools/check_errors.py"],
        "shape": [PYTHON, "tools/check_shape.py"],
        "reference": [PYTHON, "tools/reference.py", "--check"],
        "words": [PYTHON, "tools/check_words.py"],
    }


def run(name: str, command: list[str]) -> bool:
    """Run one check, print its line and, if it failed, what it said; return whether it passed."""
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    said = f"{done.stdout}{done.stderr}".strip()
    passed = done.returncode == 0
    last = said.splitlines()[-1] if said and passed else ""
    line = f"{name:9} {'ok' if passed else 'FAILED':6} {seconds:5.1f} s  {last}".rstrip()
    print(line if passed else f"{line}\n{said}", flush=True)
    return passed


def main() -> int:
    """Run all checks and return the exit code."""
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        checks = commands(Path(scratch))
        passed = list(pool.map(run, checks.keys(), checks.values()))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
