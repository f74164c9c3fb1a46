"""The ledger of runs that other tools have logged: what is told is accounted for, the rest is unknown."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from stepscope.analysis.cost.ledger import CLASSES, charge
from stepscope.analysis.cost.logged_time import Logged, attempt_of_log
from stepscope.cli.main import main
from stepscope.core.ring import NO_STEP
from stepscope.store.catalog import runs

BEGAN = 1.7e9


def logged(step, value, time=None):
    """Return a metric; without times nobody knows when."""
    step = np.asarray(step, np.int64)
    when = np.full(len(step), np.nan) if time is None else BEGAN + np.asarray(time, float)
    return Logged(step, when, np.asarray(value, float))


def spent(series, last=0.0):
    """Return the classes that have any time."""
    found = charge([attempt_of_log(series, (BEGAN, BEGAN + last))])
    assert sum(found.seconds.values()) == pytest.approx(found.wall_seconds)
    return {name: pytest.approx(seconds) for name, seconds in found.seconds.items() if seconds > 1e-6}


def test_a_logged_step_stands_for_those_since_the_one_before():
    """Every tenth step is logged with its seconds: all ten took as long; what lies between is unknown."""
    step = logged([9, 19, 29], [1.0, 1.0, 2.0], [10, 25, 45])
    assert spent({"step_seconds": step}, 45) == {"productive": 10 + 10 + 20, "unknown": 5}


def test_phases_and_evaluations_are_told_apart():
    """A phase of a logged step counts for all of its steps; an evaluation is a stretch of its own."""
    series = {
        "step_seconds": logged([10, 20], [1.0, 1.0], [10, 25]),
        "phase/data": logged([10, 20], [0.2, 0.4]),
        "phase/evaluation": logged([10], [3.0], [14]),
    }
    assert spent(series, 25) == {"data": 2 + 4, "productive": 8 + 6, "evaluation": 3, "unknown": 1 + 1}


def test_an_evaluation_logged_with_a_step_came_after_it():
    """Both have one time: the step was over when the evaluation began."""
    series = {
        "step_seconds": logged([10, 20], [1.0, 1.0], [13, 23]),
        "eval_runtime": logged([10], [3.0], [13]),
    }
    assert spent(series, 23) == {"productive": 20, "evaluation": 3}


def test_without_a_clock_the_parts_are_added_up():
    """A log without times has the sum of its steps and evaluations as its wall clock, and what it says of the whole."""
    series = {"step_seconds": logged([1, 2, 3], [1.0, 1.0, 1.0]), "eval_g0_runtime": logged([2], [4.0])}
    assert spent(series) == {"productive": 3, "evaluation": 4}
    assert spent({**series, "train_runtime": logged([3], [10.0])}) == {"productive": 3, "evaluation": 4, "unknown": 3}


def test_a_log_of_losses_is_judged_by_its_pace():
    """Steps that were logged every second are productive; a pause between two of them is unknown."""
    time = np.arange(20.0)
    time[10:] += 30
    series = {"loss": logged(np.arange(20), np.ones(20), time)}
    assert spent(series, 49) == {"productive": 19, "unknown": 30}


def test_a_missing_piece_of_a_log_is_not_made_up():
    """A jump of a thousand steps in a log of every tenth is no work that is known."""
    series = {"step_seconds": logged([10, 20, 30, 1030, 1040], np.ones(5))}
    assert spent(series) == {"productive": 50}


def test_machine_samples_alone_are_unknown():
    """Without a step nobody knows what was productive, and the run has no goodput."""
    ledger = charge([attempt_of_log({}, (BEGAN, BEGAN + 60))])
    assert ledger.seconds["unknown"] == 60
    assert ledger.goodput_ratio is None
    assert ledger.wasted == {}


ROWS = some.lists(
    some.tuples(
        some.integers(-5, 50) | some.just(NO_STEP), some.floats(0, 100) | some.just(float("nan")), some.floats(-10, 200)
    ),
    max_size=8,
)
NAMES = some.sampled_from(
    ["step_seconds", "phase/data", "phase/evaluation", "phase/checkpoint", "eval_runtime", "train_runtime", "loss"]
)


@pytest.mark.slow
@settings(max_examples=200)
@given(some.dictionaries(NAMES, ROWS, max_size=4), some.floats(0, 300), some.booleans())
def test_any_log_sums_to_its_wall_clock(rows, last, timed):
    """Whatever a log has, no time is negative, and the classes sum to the wall clock."""
    series = {}
    for name, some_rows in rows.items():
        step, value, time = (list(column) for column in zip(*some_rows, strict=True)) if some_rows else ([], [], [])
        series[name] = logged(step, value, time if timed else None)
    found = charge([attempt_of_log(series, (BEGAN, BEGAN + last))])
    assert all(seconds >= -1e-6 for seconds in found.seconds.values())
    assert sum(found.seconds.values()) == pytest.approx(found.wall_seconds, abs=1e-5)


def test_an_imported_run_has_a_ledger(tmp_path, capsys):
    """`stepscope ledger` of an imported log: the classes it tells, the rest unknown, and both said in words."""
    rows = [{"step": at, "step_seconds": 1.0, "time": BEGAN + 2 * at} for at in range(1, 41)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["import", str(tmp_path / "log.jsonl"), "--dir", str(tmp_path / "runs")]) == 0
    (run,) = runs(str(tmp_path / "runs"))
    capsys.readouterr()
    assert main(["ledger", str(run.path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["seconds"]) == set(CLASSES)
    assert facts["seconds"]["productive"] == pytest.approx(40)
    assert facts["seconds"]["unknown"] == pytest.approx(39)
    assert facts["imported"] == {"format": "jsonl", "timed": True}
    assert main(["ledger", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "at least 50.6 % productive; 49.4 % is missing in its log" in shown
