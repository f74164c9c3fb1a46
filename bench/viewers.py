"""TensorBoard and Aim as servers over the same numbers: how they get them, how they are started and asked.

TensorBoard is that of the environment, and reads what our own exporter writes. Aim brings much, so it lives in an
environment of its own: `make aim` makes it, and AIM_PYTHON names another. Its numbers are written by its own
`Run.track`, one by one.
"""

# ruff: noqa: D102 - the base class says what each does

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.processes import ROOT, environment, kib, output_of, tree
from bench.served import free_port
from stepscope.sources.opened_run import open_run
from stepscope.store.catalog import run_folders

if TYPE_CHECKING:
    from collections.abc import Sequence

START_SECONDS = 180.0
QUICK = "not started with --quick"
AIM_PYTHON = Path(os.environ.get("AIM_PYTHON", ROOT / ".venv-aim" / "bin" / "python"))
AIM_WRITER = """
import json, sys
from aim import Run
for line in sys.stdin:
    facts = json.loads(line)
    run = Run(repo=sys.argv[1], system_tracking_interval=None, log_system_params=False, capture_terminal_logs=False)
    run.name = facts["name"]
    for name, pairs in facts["series"].items():
        for step, value in pairs:
            run.track(value, name=name, step=step)
    run.close()
"""


class Viewer:
    """A peer that shows runs in the browser; a context manager once it is started."""

    key = title = route = ""
    runs, points = 100, 10_000
    """How many runs it is given to list, and points of each."""

    def __init__(self, folder: Path) -> None:
        """Keep its files in a folder."""
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.began = 0.0

    @classmethod
    def missing(cls) -> str:
        """Say why it cannot be measured here; empty if it can."""
        raise NotImplementedError

    def write(self, runs: Path) -> None:
        """Give it the numbers of the runs below a folder."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return what starts it."""
        raise NotImplementedError

    def listed(self, answer: bytes) -> int:
        """Return how many runs are in the answer of its route."""
        raise NotImplementedError

    def __enter__(self) -> Viewer:  # noqa: PYI034 - typing.Self needs Python 3.11
        """Start it."""
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.began = time.monotonic()
        self.process = subprocess.Popen(self.command(), cwd=self.folder, env=self.environ(), **quiet)
        return self

    def environ(self) -> dict[str, str]:
        """Return its environment: its own home, nobody is told."""
        return environment(HOME=str(self.folder), AIM_UI_TELEMETRY_ENABLED="0", __AIM_TELEMETRY_ENABLED__="0")

    def __exit__(self, *_: object) -> None:
        """End it with its children."""
        if self.process is None:
            return
        for pid in reversed(tree(self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 15)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def answered(self) -> float:
        """Return the seconds from its start to its first answer."""
        return self.until(0)

    def until(self, runs: int) -> float:
        """Return the seconds from its start until so many runs are listed. Raises RuntimeError if that never comes."""
        while time.monotonic() - self.began < START_SECONDS:
            answer = self._ask()
            if answer is not None and self.listed(answer) >= runs:
                return time.monotonic() - self.began
            time.sleep(0.02)
        raise RuntimeError(f"{self.title} lists no {runs} runs within {START_SECONDS:.0f} s")

    def _ask(self) -> bytes | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", self.route)
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return data if response.status == 200 else None

    def memory(self) -> int:
        """Return the proportional memory of all its processes, in bytes."""
        assert self.process is not None
        return sum(kib(pid, "Pss", "smaps_rollup") for pid in tree(self.process.pid)) * 1024


class TensorBoard(Viewer):
    """TensorBoard, with its fast loader where that is installed."""

    key, title, route = "tensorboard", "TensorBoard", "/data/runs"

    @classmethod
    def missing(cls) -> str:
        return "" if importlib.util.find_spec("tensorboard") else "not installed: tensorboard"

    def write(self, runs: Path) -> None:
        exported: dict[tuple[int, ...], Path] = {}
        for path in run_folders(runs):
            to, inodes = self.folder / "logs" / path.name, tuple(sorted(unit.stat().st_ino for unit in _units(path)))
            if inodes in exported:
                shutil.copytree(exported[inodes], to)
                continue
            to.parent.mkdir(parents=True, exist_ok=True)
            output_of("-m", "stepscope", "export", str(path), "--format", "tensorboard", "--output", str(to))
            exported[inodes] = to

    def command(self) -> list[str]:
        words = ["--logdir", str(self.folder / "logs"), "--port", str(self.port), "--host", "127.0.0.1"]
        return [sys.executable, "-m", "tensorboard.main", *words]

    def listed(self, answer: bytes) -> int:
        return len(json.loads(answer))

    def address(self) -> str:
        """Return the page that shows the charts."""
        return f"http://127.0.0.1:{self.port}/#timeseries"


class Aim(Viewer):
    """Aim."""

    key, title, route = "aim", "Aim", "/api/projects/activity?timezone=0"
    runs, points = 10, 1000  # to write a point takes it a millisecond

    @classmethod
    def missing(cls) -> str:
        return "" if AIM_PYTHON.is_file() else f"not installed: aim in {AIM_PYTHON.parent.parent.name}"

    def write(self, runs: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        init = [str(AIM_PYTHON.with_name("aim")), "init", "--repo", str(self.folder), "-y"]
        subprocess.run(init, env=self.environ(), check=True, capture_output=True, timeout=START_SECONDS)
        lines = [json.dumps(_facts(path)) for path in run_folders(runs)]
        writer = [str(AIM_PYTHON), "-c", AIM_WRITER, str(self.folder)]
        subprocess.run(
            writer, input="\n".join(lines).encode(), env=self.environ(), check=True, capture_output=True, timeout=1800
        )

    def command(self) -> list[str]:
        words = ["--repo", str(self.folder), "--port", str(self.port), "--host", "127.0.0.1", "-y"]
        return [str(AIM_PYTHON.with_name("aim")), "up", *words]

    def listed(self, answer: bytes) -> int:
        return int(json.loads(answer)["num_runs"])


VIEWERS: Sequence[type[Viewer]] = (TensorBoard, Aim)


def _units(path: Path) -> list[Path]:
    return list((path / "metrics").iterdir()) if (path / "metrics").is_dir() else [path / "run.json"]


def _facts(path: Path) -> dict[str, Any]:
    past = open_run(path)
    series = {name: past.series(name) for name in past.names()}
    pairs = {name: list(zip(one.step.tolist(), one.value.tolist(), strict=True)) for name, one in series.items()}
    return {"name": path.name, "series": pairs}
