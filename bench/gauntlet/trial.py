"""Run one case under `stepscope run`, let `stepscope diagnose` judge it, and read how long its steps took."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.processes import environment
from bench.sandbox import settled
from bench.torch_loop import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.gauntlet.cases import Case

SCRIPTS = Path(__file__).parent / "scripts"
WARM = 5
"""Steps at the beginning that are left out of the mean."""
DEADLINE = 150.0
"""Seconds that a case may take."""
GROUPS = Path("/sys/fs/cgroup/cpu")
"""Control groups of version 1, whose quota a test may set here; elsewhere the case is left out."""
SERIOUS = {"warning", "critical"}
MACHINE = {"cpu_usage", "memory_pressure", "io_wait", "io_pressure", "disk_usage", "disk_filling", "training_speed"}
"""Rules on the machine, or on what others on it do to the steps."""


@dataclass(frozen=True)
class Verdict:
    """What was said of a run."""

    primary: str
    findings: list[dict[str, Any]] = field(default_factory=list)
    step: float | None = None
    """Mean step in seconds."""
    seconds: float = 0.0
    trouble: str = ""
    others: float | None = None
    """Processors that other programs took meanwhile; None if nobody knows."""
    alerts: list[str] = field(default_factory=list)
    """Rules that fired during the run, but for those on the machine, which is not the script's."""

    def is_right(self, case: Case) -> bool:
        """Say whether the primary verdict is one that is right, and names the rank."""
        if self.trouble or self.primary not in case.kinds:
            return False
        return case.rank is None or any(
            one.get("rank") == case.rank for one in self.findings if one["kind"] == self.primary
        )

    def false(self) -> list[str]:
        """Return the serious findings and the alerts, all of which are false where nothing was planted."""
        told = [one["kind"] for one in self.findings if one.get("severity") in SERIOUS]
        return told + [f"alert {rule}" for rule in self.alerts]

    def gain(self, case: Case) -> float | None:
        """Return the share of a step that the removal of the cause is expected to save."""
        return next((one.get("gain_ratio") for one in self.findings if one["kind"] in case.kinds), None)


def run(case: Case, folder: Path, *, planted: bool = True) -> Verdict:
    """Train and judge; a case that this machine cannot run says so in `trouble`."""
    words = case.arguments if planted else (*case.arguments, *(case.without or ()))
    name = "".join(letter if letter.isalnum() else "-" for letter in case.name)
    root = folder / f"{name}-{'planted' if planted else 'without'}"
    work = root / "work"
    work.mkdir(parents=True)
    started = time.monotonic()
    with _group(case.quota if planted else None) as prefix, (root / "output.txt").open("wb") as output:
        if prefix is None:
            return Verdict("", trouble="no control group here")
        command = [*prefix, *_command(case, root), str(SCRIPTS / case.script), *words]
        child = subprocess.Popen(
            command,
            cwd=work,
            env=environment(OMP_NUM_THREADS="1"),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            if not _wait(child, case.alive, root / "output.txt"):
                return Verdict("", trouble=f"took more than {DEADLINE:.0f} s")
            return _judge(root, started, alive=child.poll() is None)
        finally:
            _end(child)
            shutil.rmtree(work, ignore_errors=True)


def _wait(child: subprocess.Popen[bytes], silence: float | None, output: Path) -> bool:
    """Wait for the end, or for so many seconds without a printed line; False if neither comes."""
    deadline = time.monotonic() + DEADLINE
    size, since = 0, time.monotonic()
    while child.poll() is None:
        now = time.monotonic()
        if now > deadline:
            return False
        if output.stat().st_size != size:
            size, since = output.stat().st_size, now
        if silence is not None and size and now - since > silence:
            return True
        time.sleep(0.1)
    return True


def _command(case: Case, root: Path) -> list[str]:
    program = ["-m", "stepscope", "run", "--dir", str(root / "runs"), "--project", "gauntlet"]
    if case.ranks == 1:
        return [sys.executable, *program]
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={case.ranks}", f"--master-port={free_port()}"]
    return [sys.executable, *launch, *program]


def _judge(root: Path, started: float, *, alive: bool) -> Verdict:
    import stepscope
    from stepscope.alerts.evaluation.history import alerts_of

    seconds = time.monotonic() - started
    found = stepscope.runs(root / "runs")
    if not found:
        return Verdict("", trouble=(root / "output.txt").read_text(errors="replace")[-300:])
    path = found[0].path
    if not alive:
        settled(Path(path))
    command = [sys.executable, "-m", "stepscope", "diagnose", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)
    if done.returncode:
        return Verdict("", trouble=done.stderr[-300:])
    told = json.loads(done.stdout)
    past = stepscope.open(path)
    steps = past.series("step_seconds")
    kept = steps.value[steps.step >= WARM]
    step = float(np.mean(kept)) if len(kept) else None
    fired = sorted({row["rule"] for row in alerts_of(past.events())} - MACHINE)
    return Verdict(told["primary"], told["findings"], step, seconds, others=_others(path), alerts=fired)


def _others(path: str | os.PathLike[str]) -> float | None:
    """Return how many processors of the machine other programs took, by the samples of the run."""
    import stepscope

    past = stepscope.open(path)
    names = past.names()
    own = [name for name in names if name.startswith("process/") and name.endswith("/tree_cpu_ratio")]
    if "cpu/machine_usage_ratio" not in names or not own:
        return None
    used = float(np.nanmean(past.series("cpu/machine_usage_ratio").value)) * (os.cpu_count() or 1)
    return max(0.0, used - sum(float(np.nanmean(past.series(name).value)) for name in own))


@contextlib.contextmanager
def _group(quota: float | None) -> Iterator[list[str] | None]:
    """Give the words that put a command into a control group with so many processors; None where that is impossible."""
    if quota is None:
        yield []
        return
    place = GROUPS / f"stepscope-gauntlet-{os.getpid()}"
    try:
        place.mkdir()
        (place / "cpu.cfs_period_us").write_text("100000")
        (place / "cpu.cfs_quota_us").write_text(str(int(quota * 100_000)))
    except OSError:
        yield None
        return
    try:
        yield ["/bin/sh", "-c", f'echo $$ > {place}/tasks && exec "$@"', "sh"]
    finally:
        _remove(place)


def _remove(place: Path) -> None:
    for _ in range(100):
        try:
            place.rmdir()
        except OSError:  # the watcher is still in it
            time.sleep(0.1)
        else:
            return


def _end(child: subprocess.Popen[bytes]) -> None:
    """End what is left of a case: its own session, and nothing else."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(10)
