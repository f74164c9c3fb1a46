"""The process that runs jobs of real ranks, one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from bench.stragglers.cases import Case


class Jobs:
    """The process that runs jobs one after the other."""

    def __init__(self, scratch: Path) -> None:
        """Start it: it imports torch once for all."""
        self._scratch = scratch
        words = [sys.executable, "-m", "bench.stragglers.job"]
        self._log = (scratch / "ranks.log").open("wb")
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def run(self, case: Case, **more: Any) -> tuple[Path, bool]:
        """Run a case; return the folder of its run, and whether all ranks finished."""
        run = self.start(case, **more)
        return run, self.wait()

    def start(self, case: Case, **more: Any) -> Path:
        """Start a case; return the folder of its run."""
        folder = self._scratch / case.name
        folder.mkdir()
        given = {**case._asdict(), "name": case.name, "folder": str(folder), **more}
        if self._process.stdin is None:
            raise RuntimeError("cannot start a job: the process has no input")
        self._process.stdin.write(f"{json.dumps(given)}\n")
        self._process.stdin.flush()
        return folder / "runs" / "stragglers" / case.name

    def wait(self) -> bool:
        """Wait for the end of the case; return whether all ranks finished."""
        if self._process.stdout is None:
            raise RuntimeError("cannot wait for a job: the process has no output")
        answer = self._process.stdout.readline()
        return bool(answer) and bool(json.loads(answer)["ok"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._log.close()
