from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import stepscope
from stepscope.core.errors import StepscopeError
from stepscope.core.ring import NO_STEP
from stepscope.exporters.files.selection import choose
from stepscope.exporters.formats import FORMATS as EXPORTS
from stepscope.importers import formats
from stepscope.importers.logs import jsonl

pytestmark = pytest.mark.processes


def read(tmp_path, text):
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    return jsonl.FORMAT.read(str(path))


def test_rows_are_read_with_step_time_rank_and_depth(tmp_path):
    """The usual names of step, time and rank are known; objects in a row are paths."""
    run = read(
        tmp_path,
        '{"global_step": 5, "timestamp": "2024-01-01T00:00:00Z", "rank": 2, "train": {"loss": 0.5}, "ok": true}\n'
        '{"global_step": 6, "timestamp": 1704067201000, "rank": -1, "train": {"loss": NaN}, "text": "x"}\n',
    )
    loss = run.series("loss")
    assert run.names() == ["loss"]
    assert run.facts["names"] == {"loss": "train/loss"}
    assert loss.step.tolist() == [5, 6]
    assert loss.time.tolist() == [1704067200.0, 1704067201.0]
    assert loss.rank.tolist() == [2, 0]
    assert math.isnan(loss.value[1])


def test_rows_without_a_step_count_up_and_samples_of_a_time_have_none(tmp_path):
    """A log without steps is counted; what has a time alone belongs to no step."""
    assert read(tmp_path, '{"loss": 1}\n{"loss": 2}\n').series("loss").step.tolist() == [0, 1]
    assert read(tmp_path, '{"time": 1, "watts": 2}\n').series("watts").step.tolist() == [NO_STEP]
    assert read(tmp_path, '{"time": 1, "epoch": 4, "loss": 2}\n').series("loss").step.tolist() == [4]


def test_a_list_of_objects_is_rows(tmp_path):
    """A JSON array of rows is read like lines."""
    run = read(tmp_path, '[\n {"step": 1, "loss": 2},\n {"step": 2, "loss": 3}, 7]')
    assert run.series("loss").value.tolist() == [2, 3]
    assert run.notes == ("rows that are no JSON objects, left out",)


def test_broken_lines_cost_themselves(tmp_path):
    """A line that is cut, deep or no object is counted; the others are read."""
    run = read(tmp_path, '{"step": 1, "loss": 2}\n{"step": 2, "lo\n' + "[" * 100_000 + '\n{"step": 3, "loss": 4}\n5\n')
    assert run.series("loss").step.tolist() == [1, 3]
    assert run.notes == ("rows that are no JSON objects, left out (3 times)",)
    with pytest.raises(StepscopeError, match="no numbers"):
        read(tmp_path, '{"a": "b"}\n')


@given(some.lists(some.tuples(some.integers(-(2**61), 2**61), some.floats()), min_size=1, max_size=20))
def test_numbers_come_back_as_they_were(tmp_path_factory, rows):
    """Every float and every step survives."""
    text = "".join(json.dumps({"step": step, "loss": value}) + "\n" for step, value in rows)
    series = read(tmp_path_factory.mktemp("jsonl"), text).series("loss")
    assert series.step.tolist() == [step for step, _ in rows]
    assert np.array_equal(series.value, np.array([value for _, value in rows]), equal_nan=True)


@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_what_stepscope_exports_it_reads(name, tmp_path):
    """An exported run has the same points as the run itself, also those that are not finite."""
    with stepscope.init(project="demo") as run:
        for step in range(5):
            run.log({"loss": 1 / (step + 1), "val/acc": math.inf if step == 2 else 0.5}, step=step * 10)
    past = stepscope.open(run.path)
    path = tmp_path / "export"
    with path.open("wb") as stream:
        EXPORTS[name].write(past, choose(past, ["loss", "val/acc"]), stream)
    (found,) = formats.read(str(path))
    assert found.format == "stepscope"
    for metric in ("loss", "val/acc"):
        ours, theirs = past.series(metric), found.series(metric)
        for column in ("step", "value", "rank", "attempt"):
            assert getattr(ours, column).tolist() == getattr(theirs, column).tolist()
        assert theirs.time == pytest.approx(ours.time, abs=1e-5)


def test_values_that_are_no_numbers_are_noted(tmp_path):
    """Switches, lists and texts that change are named; a text that stays is a fact."""
    path = tmp_path / "rows"
    path.write_text(
        "".join(f'{{"step": {at}, "loss": 1, "ok": true, "x": [1], "m": "{at}", "h": "a"}}\n' for at in "12")
    )
    run = jsonl.FORMAT.read(str(path))
    assert run.notes == (
        "lists, switches, media and deeper objects, left out: ok, x (4 values)",
        "text, left out: m (2 values)",
    )
    assert run.facts == {"h": "a"}


def test_rows_of_verl_have_plain_names(tmp_path):
    """verl's file logger wraps the values of a step; their names are those that verl shows."""
    path = tmp_path / "experiment.jsonl"
    path.write_text(
        '{"step": 1, "data": {"actor/pg_loss": 0.5, "training/global_step": 1, "val-core/gsm8k/acc": NaN}}\n'
        '{"step": 2, "data": {"actor/pg_loss": -Infinity, "perf/mfu/actor": 0.25}}\n'
    )
    [run] = formats.read(str(path))
    assert run.names() == ["actor/pg_loss", "perf/mfu/actor", "training/global_step", "val-core/gsm8k/acc"]
    assert run.series("actor/pg_loss").step.tolist() == [1, 2]
    assert run.series("actor/pg_loss").value.tolist() == [0.5, -math.inf]
    assert run.series("perf/mfu/actor").step.tolist() == [2]


def test_rows_of_prime_rl_are_read(tmp_path):
    """prime-rl's file monitor writes step, time and the metrics; nested ones are joined by a slash."""
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 3, "time": 1700000000.5, "reward/all/mean": 0.5, "time/step": 2.5, "env": {"score": 1}}\n'
    )
    [run] = formats.read(str(path))
    assert {name: run.series(name).value.tolist() for name in run.names()} == {
        "env/score": [1.0],
        "reward/all/mean": [0.5],
        "step_seconds": [2.5],
    }
    assert run.series("env/score").step.tolist() == [3]
    assert run.series("env/score").time.tolist() == [1700000000.5]
