"""Real watchers whose run is taken away in parts: each ends soon after its trainer, and what can be kept is kept."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import stepscope
from tests.faults import spaces
from tests.integration.processes import kill, until, watchers

LONGEST = 30.0
"""Seconds after the end of the trainer in which its watcher ends."""

LOOP = """
    import sys, time
    import stepscope
    run = stepscope.init(project="robbed", run_id="one")
    print(run.path, flush=True)
    step = 0
    while True:
        run.log({"x": step})
        step += 1
        time.sleep(0.005)
"""


def replace(part):
    """Put a file in the place of a folder."""
    part.rename(part.with_name(f"{part.name}.aside"))
    part.write_text("no folder")


def remove(path):
    """Remove a folder into which somebody may write meanwhile."""
    until(lambda: shutil.rmtree(path, ignore_errors=True) or not path.exists(), "the removal", seconds=LONGEST)


def train(bench):
    """Return a trainer that logs on and on, and its run's folder with rows in it."""
    trainer = bench.start(LOOP)
    path = Path(trainer.line())
    until(lambda: count(path) > 20, "the rows on disk")
    return trainer, path


def count(path):
    """Return how many rows of the trainer can be read."""
    past = stepscope.open(path)
    return len(past.series("x")) if "x" in past.names() else 0


def end(bench, trainer, number=signal.SIGKILL):
    """End the trainer; return the processor seconds that its watcher took until it had ended, too."""
    (watcher,) = watchers(*bench.roots) or [0]
    kill(trainer.pid, number)
    trainer.wait()
    ended, spent = time.monotonic(), 0.0
    while watchers(*bench.roots):
        assert time.monotonic() - ended < LONGEST, "the watcher lives on"
        spent = max(spent, cpu_seconds(watcher) if watcher else 0.0)
        time.sleep(0.05)
    return spent


def cpu_seconds(pid):
    """Return the processor time of a process; 0 once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("part", ["tail", "nodes", "events", "metrics"])
def test_a_part_that_is_removed_comes_back(bench, part):
    """A removed part costs what was in it; later rows and the end are there, and the trainer is told."""
    trainer, path = train(bench)
    remove(path / part)
    until((path / part).is_dir, "the part made anew")
    before = count(path)
    until(lambda: count(path) > before + 500, "more rows")  # the trainer hears of it once a second
    end(bench, trainer)
    bench.quiet()
    past = stepscope.open(path)
    steps = past.series("x").step.tolist()
    assert steps == list(range(steps[0], steps[-1] + 1))
    assert (past.state, past.problems()) == ("killed", [])
    assert "cannot find parts of the run's folder" in trainer.err


@pytest.mark.parametrize("part", ["tail", "nodes"])
def test_a_part_that_is_replaced_keeps_no_watcher_alive(bench, part):
    """Where nothing can be written the watcher waits quietly for a while, gives up, and the rows are salvaged later."""
    trainer, path = train(bench)
    replace(path / part)
    until(lambda: "cannot write the run" in log_of(path), "a word in the watcher's log")
    time.sleep(1.5)  # the trainer hears of it with its next call, once a second
    before = cpu_seconds(watchers(*bench.roots)[0])
    assert end(bench, trainer) - before < 0.3 * LONGEST
    assert "giving up on rank 0" in log_of(path)
    assert "cannot write the run" in trainer.err
    (path / part).unlink()
    (path / f"{part}.aside").rename(path / part)
    past = stepscope.open(path)
    steps = past.series("x").step.tolist()
    assert steps == list(range(len(steps)))
    assert past.state == "killed"


@pytest.mark.parametrize("take", [remove, replace, lambda path: path.rename(path.with_name("other"))])
@pytest.mark.parametrize("up", [0, 2], ids=["run", "root"])
def test_a_run_that_is_gone_ends_its_watcher(bench, up, take):
    """With the run or the root of all runs gone in any way, nobody is left behind."""
    trainer, path = train(bench)
    take([path, *path.parents][up])
    until(lambda: not watchers(*bench.roots), "the end of the watcher", seconds=LONGEST)
    time.sleep(1.5)
    end(bench, trainer)
    assert "cannot write the run: its folder was removed or renamed" in trainer.err


MOUNTED = """
    import os, subprocess, sys, time
    import stepscope
    disk = sys.argv[1]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    run = stepscope.init(project="mounted", dir=disk)
    for step in range(600):
        run.log({"x": step})
        time.sleep(0.005)
        if step == 200:
            subprocess.run(["umount", "-l", disk], check=True)
    os._exit(0)
"""


def test_a_mount_that_goes_ends_the_watcher(bench):
    """A file system that is taken off under a run is told, and ends its watcher with the trainer."""
    disk = bench.folder / "disk"
    disk.mkdir()
    trainer = bench.start(MOUNTED, disk, prefix=spaces.unshared(spaces.MOUNTS))
    assert trainer.wait() == 0, trainer.err
    until(lambda: not watchers(*bench.roots), "the end of the watcher", seconds=LONGEST)
    assert "cannot write the run: its folder was removed or renamed" in trainer.err


def log_of(path):
    """Return what the watcher wrote down."""
    try:
        return (path / "watcher.log").read_text()
    except OSError:
        return ""
