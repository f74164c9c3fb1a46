"""Kill -9 at random times: no acknowledged row is lost, doubled or altered, and the state says what happened."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import stepscope
from bench.processes import alive
from tests.integration import ledger
from tests.integration.processes import kill, left_behind, sealers, until, watchers

KILLS = 5
"""Per way of killing: 20 in all; bench/killing.py does 200."""
PAUSES = (0.0002, 0.001, 0.01, 0.1)
"""Seconds between two rows."""
SMALL = {"store__seal_bytes": 64 << 10}


class Round:
    """One trainer with its ledger."""

    def __init__(self, bench, number, settings):
        self.ledger = bench.folder / f"ledger{number}"
        pause = PAUSES[number % len(PAUSES)]
        self.trainer = bench.start(ledger.TRAINER, self.ledger, pause, repr(settings), name=f"train{number}.py")
        self.path = self.trainer.line()
        until(lambda: self.ledger.exists() and self.ledger.stat().st_size, "the first row")

    def check(self):
        """Compare the ledger with the run, once its end is known; return how the run ended."""
        until(lambda: stepscope.open(self.path).state != "running", "the end of the run")
        return ledger.compare(self.ledger, self.path).state


def rounds(bench, settings=None):
    """Return the rounds, each some random time after its first row."""
    for number in range(KILLS):
        started = Round(bench, number, settings or {})
        time.sleep(random.uniform(0.0, 0.6))
        yield started


@pytest.mark.promise("S1-062")
def test_killing_the_trainer_loses_nothing(bench):
    """What log() returned for is in the run after SIGKILL of the trainer, once and unaltered."""
    for each in rounds(bench):
        each.trainer.process.kill()
        assert each.check() == "killed"


def test_killing_the_whole_tree_loses_nothing(bench):
    """The reader salvages the ring when trainer, watcher and sealing child are killed at once."""
    for each in rounds(bench, SMALL):
        until(lambda path=each.path: watchers(path), "the watcher")
        pids = [each.trainer.pid, *watchers(each.path), *sealers(each.path)]
        for pid in pids:
            kill(pid)
        each.trainer.process.wait()
        # a process that is being killed loses its command line first, and its locks only later
        until(lambda pids=pids: not any(map(alive, pids)), "the end of all")
        until(lambda path=each.path: not watchers(path) and not sealers(path), "the end of a late sealing child")
        assert each.check() == "killed"
        # a second watcher may have been on its way: it finds nothing to do and ends
        until(lambda: not left_behind(), lambda: f"the end of {left_behind()}")


def test_killing_the_watcher_loses_nothing_and_the_trainer_goes_on(bench):
    """Rows wait in the ring when the watcher is killed; after the trainer's end the reader salvages them."""
    for each in rounds(bench):
        kill(until(lambda path=each.path: watchers(path), "the watcher")[0])
        before = each.ledger.stat().st_size
        until(lambda size=before, file=each.ledger: file.stat().st_size > size, "a row after the watcher's death")
        each.trainer.process.kill()
        each.trainer.process.wait()
        assert each.check() == "killed"


def test_killing_the_watcher_while_it_seals_loses_nothing(bench):
    """A kill in the middle of sealing leaves every row in the tail or in the sealed file, and counts it once."""
    for number in range(KILLS):
        each = Round(bench, 4 * number, SMALL)
        child = until(lambda path=each.path: sealers(path), "a sealing child", every=0.002)
        time.sleep(random.uniform(0.0, 0.4))
        for pid in [*watchers(each.path), *(child if number % 2 else [])]:
            kill(pid)
        each.trainer.process.kill()
        each.trainer.process.wait()
        until(lambda path=each.path: not sealers(path), "the end of the sealing child")
        assert each.check() == "killed"


RESTARTED = """
    import sys, time
    import stepscope, stepscope.session.watching as watching
    watching.STALE_SECONDS = 600.0
    run = stepscope.init(project="restarted")
    print(run.path, flush=True)
    for step in range(10**9):
        run.log({"x": step})
        if step == 100:
            sys.stdin.readline()
            watching.STALE_SECONDS = 1.0  # there is one restart, and the first watcher was alive so far
        time.sleep(0.002)
"""


def test_a_trainer_gets_a_new_watcher_when_its_own_is_stale(bench):
    """A rank that no longer hears its watcher starts a new one, which takes over every row and sees the end."""
    trainer = bench.start(RESTARTED, stdin=-1)
    path = trainer.line()
    first = bench.watcher()
    kill(first)
    trainer.process.stdin.write("go\n")
    trainer.process.stdin.flush()
    second = until(lambda: [pid for pid in watchers(path) if pid != first], "a second watcher")
    past = stepscope.open(path)
    until(lambda: "x" in past.names() and len(past.series("x")) > 1000, "rows drained by the second watcher")
    trainer.process.send_signal(signal.SIGKILL)
    until(lambda: past.state == "killed", "the end")
    series = past.series("x")
    assert second
    assert series.value.tolist() == list(range(len(series)))
    assert past.problems() == []


EARLY = """
    import os, signal, sys
    import stepscope, stepscope.session.opening as opening

    class NoWatch(opening.Watch):
        def begin(self, *_):
            print(run_path, flush=True)

    def die(*_):
        print(run_path, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    run_path = os.path.join(os.environ["STEPSCOPE_DIR"], "early", "one")
    if sys.argv[1] == "in init":
        opening.record = die
    opening.Watch = NoWatch
    run = stepscope.init(project="early", run_id="one")
    if sys.argv[1] == "after a row":
        run.log({"x": 1.0})
    die()
"""


@pytest.mark.parametrize("moment", ["after init", "after a row"])
def test_a_kill_before_the_watcher_came_is_not_running_for_ever(bench, moment, monkeypatch):
    """A run whose trainer was killed before anybody watched it is killed, and its row is there."""
    monkeypatch.setattr("stepscope.store.salvage.GRACE_SECONDS", 0.0)
    trainer = bench.start(EARLY, moment)
    path = trainer.line()
    trainer.wait()
    past = stepscope.open(path)
    assert past.state == "killed"
    assert past.names() == (["x"] if moment == "after a row" else [])


def test_a_kill_inside_init_is_not_running_for_ever(bench):
    """A run that nobody ever wrote to counts as lost once it is older than a silent watcher may be."""
    trainer = bench.start(EARLY, "in init")
    path = Path(trainer.line())
    trainer.wait()
    os.utime(path / "run.json", (time.time() - 60, time.time() - 60))
    assert stepscope.open(path).state == "lost"
    assert [info.state for info in stepscope.runs()] == ["lost"]
