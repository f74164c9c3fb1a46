"""A follower in this process: what it does with sources that stop to answer, or hold several runs."""

import contextlib
import json
import os
import signal

import pytest

import stepscope
from stepscope.core.errors import UsageError
from stepscope.importers import formats
from stepscope.importers.run_builder import ImportFormat
from stepscope.session import followed_source
from stepscope.session.following import Follower, FollowPlan
from stepscope.session.foreign_run import FollowPlace
from tests.importers.foreign import titan
from tests.integration.processes import until, wait_until_written

pytestmark = pytest.mark.processes


def rows(count):
    return "".join(json.dumps({"step": step, "loss": step / 2}) + "\n" for step in range(count))


@contextlib.contextmanager
def follower(path, root, **plan):
    """Follow a path; yields the follower and the events that it reports."""
    told = []
    found = Follower(
        FollowPlan(str(path), **plan), FollowPlace(root), lambda kind, _run, text: told.append((kind, text))
    )
    try:
        yield found, told
    finally:
        found.close()


def test_stuck_child_does_not_hold_the_others(tmp_path, monkeypatch):
    """A source whose file system does not answer is reported; another one goes on, and the end waits for neither."""
    monkeypatch.setattr(followed_source, "SILENT_SECONDS", 1.0)
    place, root = tmp_path / "logs", tmp_path / "runs"
    place.mkdir()
    for name in "ab":
        (place / name).write_text(rows(3))
    with follower(place, root) as (found, told):
        until(lambda: found.turn(0.1) and [kind for kind, _ in told].count("began") == 2, "both runs")
        stuck = found.sources[str(place / "a")].children[0]
        os.kill(stuck.pid, signal.SIGSTOP)
        until(lambda: found.turn(0.1) and "stuck" in dict(told), "the word that it is stuck")
        with (place / "b").open("a") as file:
            file.write('{"step": 3, "loss": 7}\n')
        live = found.sources[str(place / "b")].runs[""]
        until(lambda: found.turn(0.1) and live.points == 4, "the row of the other source")
        os.kill(stuck.pid, signal.SIGCONT)
        until(lambda: found.turn(0.1) and "answers" in dict(told), "the word that it answers")


def test_source_with_several_runs(tmp_path, monkeypatch):
    """The runs of one source are runs of ours; each ends by its own word, and a new one is taken while it is live."""

    def fill_all(path, runs):
        with open(path, encoding="utf-8") as file:
            for line in file:
                key, step, state = line.split()
                runs.of(key).add("loss", float(step), int(step))
                runs.of(key).facts |= {"name": key} | ({"state": state} if state != "running" else {})

    form = ImportFormat("many", "many runs", lambda head: head.data.startswith(b"zero"), fill_all=fill_all)
    monkeypatch.setitem(formats.FORMATS, "many", form)
    path, root = tmp_path / "runs.db", tmp_path / "runs"
    path.write_text("zero 0 failed\none 0 running\n")
    with follower(path, root, form="many") as (found, told):
        until(lambda: found.turn(0.1) and {"imported", "began"} <= dict(told).keys(), "the first two")
        with path.open("a") as file:
            file.write("one 1 failed\n")
        until(lambda: found.turn(0.1) and "ended" in dict(told), "the end of the live one")
        with path.open("a") as file:
            file.write("two 5 running\nzero 1 failed\n")
        until(lambda: found.turn(0.1) and [kind for kind, _ in told].count("began") == 2, "the third")
        until(lambda: found.turn(0.1) and next(iter(found.sources.values())).runs["zero"].points == 2, "its late row")
    past = {
        one.name: wait_until_written(one) for one in map(stepscope.open, (info.path for info in stepscope.runs(root)))
    }
    assert {name: one.state for name, one in past.items()} == {"zero": "failed", "one": "failed", "two": "interrupted"}
    assert past["zero"].series("loss").value.tolist() == [0.0, 1.0]
    assert past["one"].series("loss").value.tolist() == [0.0, 1.0]


def test_unknown_format_is_refused(tmp_path):
    """A format that does not exist is the usual usage error."""
    with pytest.raises(UsageError, match="no such format"):
        Follower(FollowPlan(str(tmp_path), "nope"), FollowPlace(tmp_path), print)


def test_checkpoints_of_a_trainer_are_one_run(tmp_path):
    """Each checkpoint repeats the log of those before it: only what is new in it is recorded."""
    root = tmp_path / "runs"

    def checkpoint(steps):
        folder = tmp_path / "out" / f"checkpoint-{steps}"
        folder.mkdir(parents=True)
        log = [{"step": step, "loss": float(step)} for step in range(steps)]
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": steps, "log_history": log}))

    checkpoint(3)
    with follower(tmp_path / "out", root) as (found, _):
        until(lambda: found.turn(0.1) and found.sources and next(iter(found.sources.values())).runs, "the run")
        (source,) = found.sources.values()
        until(lambda: found.turn(0.1) and source.runs[""].points == 3, "the first log")
        checkpoint(5)
        until(lambda: found.turn(0.1) and source.runs[""].points == 5, "the rest")
    (info,) = stepscope.runs(root)
    assert wait_until_written(stepscope.open(info.path)).series("loss").step.tolist() == [0, 1, 2, 3, 4]


def test_ranks_of_torchtitan_are_one_run(tmp_path):
    """Each rank writes its own file, and another one after a restart: all of them are one run with two attempts."""
    root, place = tmp_path / "runs", tmp_path / "structured_logs"
    place.mkdir()

    def start(day, value):
        for rank in (0, 1):
            rows = [titan("metric_value", value + rank, "loss", step=step, rank=rank, seq=step) for step in range(3)]
            (place / f"training.global_rank_{rank}.2026111{day}-060000-AB.jsonl").write_text("".join(rows))

    def is_at(points):
        runs = [run for source in found.sources.values() for run in source.runs.values()]
        return found.turn(0.1) and [run.points for run in runs] == [points]

    start(1, 1.0)
    start(2, 7.0)
    with follower(place, root) as (found, _):
        until(lambda: is_at(12), "both attempts")
        start(3, 9.0)
        until(lambda: is_at(18), "the third attempt")
    (info,) = stepscope.runs(root)
    past = wait_until_written(stepscope.open(info.path))
    assert past.name == "training"
    for rank in (0, 1):
        found = past.series("loss", rank=rank)
        assert found.value.tolist() == [each + rank for each in (1.0, 7.0, 9.0) for _ in range(3)]
        assert found.attempt.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
