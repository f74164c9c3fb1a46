"""The ledger of a scripted job that is killed and takes up its work again."""

from __future__ import annotations

import json
import os
import signal
import time

import numpy as np
import pytest

import stepscope
from stepscope.analysis.cost.ledger import CLASSES, charge
from stepscope.cli.main import main
from stepscope.sources.attempts import attempts_of
from tests.integration.processes import until

JOB = """
import os, signal, sys, time
import stepscope

first, last, kill_at = map(int, sys.argv[1:])
run = stepscope.init(project="ledger", run_id="job")
time.sleep(0.3)                                    # start or restart: loading the model
for index in range(first, last):
    with run.phase("data"):
        time.sleep(0.01)
    with run.step(index=index):
        with run.phase("copy"): time.sleep(0.005)
        with run.phase("forward"): time.sleep(0.02)
        with run.phase("backward"): time.sleep(0.02)
        if index % 10 == 9:
            with run.phase("checkpoint"): time.sleep(0.05)
            with run.phase("evaluation"): time.sleep(0.04)
        if index == 0:
            with run.phase("compile"): time.sleep(0.2)
    if index == kill_at:
        print("there", flush=True)
        time.sleep(600)
run.finish()
"""


@pytest.fixture
def job(bench):
    """Run 26 steps, be killed, restart at the checkpoint of step 20, and finish with step 39; return the run."""
    begun = time.time()
    first = bench.start(JOB, 0, 40, 25)
    assert first.line() == "there"
    time.sleep(0.4)  # a step that the kill breaks off
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    path = os.path.join(os.environ["STEPSCOPE_DIR"], "ledger", "job")
    until(lambda: stepscope.open(path).state == "killed", "the end of the first attempt")
    second = bench.run(JOB, 20, 40, -1)
    assert second.process.returncode == 0, second.err
    bench.quiet()
    return path, time.time() - begun


def kept(name, first, second):
    """Return the seconds of a phase in the steps whose work was kept."""
    return sum(float(np.nansum(values)) for values in (first.phases[name][:20], second.phases.get(name, ())))


@pytest.mark.promise("S2-065")
def test_ledger_of_a_job_with_restart_sums_to_the_wall_clock(job, capsys):
    """Every second has a class: they sum to the wall clock within 0.1 %, and each is what the steps recorded."""
    path, watched = job
    past = stepscope.open(path)
    first, second = attempts = attempts_of(past)
    ledger = charge(attempts)
    assert set(ledger.seconds) == set(CLASSES)
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.wall_seconds, rel=1e-3)
    assert 0 < ledger.wall_seconds <= watched
    assert ledger.wall_seconds == pytest.approx(second.ended - first.started)
    spent = ledger.seconds
    # 20 steps whose work was kept in the first attempt, 20 in the second. Sleeping takes its time, or longer.
    slept = {"data": 40 * 0.01, "copy": 40 * 0.005, "checkpoint": 4 * 0.05, "evaluation": 4 * 0.04, "compile": 0.2}
    for name, seconds in slept.items():
        assert spent[name] == pytest.approx(kept(name, first, second), rel=0.02, abs=0.02)
        assert spent[name] >= 0.98 * seconds
    rest = first.seconds[:20].sum() + second.seconds.sum() - sum(kept(name, first, second) for name in slept)
    assert spent["productive"] == pytest.approx(rest, rel=0.02, abs=0.1)
    assert spent["productive"] >= 40 * 0.04
    assert spent["redone"] == pytest.approx(first.ended - first.end[19], rel=0.02, abs=0.05)
    assert spent["redone"] >= 6 * 0.055 + 0.4
    assert spent["start"] >= 0.25
    assert spent["restart"] >= 0.25
    assert spent["stall"] == spent["away"] == 0
    assert [one["state"] for one in ledger.attempts] == ["killed", "finished"]

    assert main(["ledger", path, "--price", "3.6", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["seconds"] == pytest.approx(spent)
    assert facts["money"]["total"] == pytest.approx(ledger.wall_seconds * 3.6 / 3600)
    assert facts["money"]["classes"]["redone"] == pytest.approx(spent["redone"] * 1e-3)
    assert main(["ledger", path]) == 0
    shown = capsys.readouterr().out
    assert "redone work" in shown
    assert "--price" in shown


HANG = """
import time
import stepscope
from tests.integration.processes import until

def told():
    return len(stepscope.open(run.path).events("stalled"))

run = stepscope.init(project="ledger", run_id="hang")
for index in range(40):
    with run.step():
        with run.phase("forward"):
            time.sleep(0.03)
            if index == 30:
                before = told()
                until(lambda: told() > before, "a stall", every=0.2)
run.finish()
"""


def test_stall_that_the_watcher_saw_is_a_class(bench):
    """A step that stands still until that is told is a stall from its beginning on, not productive time."""
    (bench.folder / "stepscope.yaml").write_text("watcher: {stall_after: 1}\n")
    assert bench.run(HANG).process.returncode == 0
    bench.quiet()
    past = stepscope.open(os.path.join(os.environ["STEPSCOPE_DIR"], "ledger", "hang"))
    (attempt,) = attempts_of(past)
    ledger = charge([attempt])
    assert ledger.seconds["stall"] >= 0.95 * attempt.seconds[30]
    assert ledger.seconds["stall"] + ledger.seconds["productive"] == pytest.approx(attempt.seconds.sum(), rel=0.05)
    assert ledger.seconds["productive"] >= 10 * 0.03
    assert sum(ledger.seconds.values()) == pytest.approx(ledger.wall_seconds, rel=1e-3)
