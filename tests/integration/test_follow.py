"""`stepscope follow` beside real writers: the vendor's series, value by value, whatever is killed, cut or rotated."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import stepscope
from bench.processes import alive, children
from tests.integration.followers import count, ended, followed, points, series
from tests.integration.processes import until, wait_until_written

WRITER = """
import json, sys, time
path, first, last, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
with open(path, "a") as file:
    for step in range(first, last):
        print(json.dumps({"step": step, "loss": 1 / (step + 1), "time": 1.7e9 + step / 8}), file=file, flush=True)
        time.sleep(pause)
"""
SUMMARIES = """
import sys, time
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter(sys.argv[1])
for step in range(int(sys.argv[2])):
    writer.add_scalar("train/loss", 1 / (step + 1), step)
    writer.add_scalar("acc", step / 3, step)
    writer.flush()
    time.sleep(0.005)
writer.close()
"""
WANDB = """
import os, sys, time
os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": sys.argv[1], "WANDB_SILENT": "true"}
import wandb
run = wandb.init(project="bridge", name="live", config={"lr": 0.1}, settings=wandb.Settings(x_disable_stats=True))
for step in range(int(sys.argv[2])):
    run.log({"loss": 1 / (step + 1), "acc": step / 3})
    time.sleep(0.02)
run.finish()
"""


def test_live_rows_are_recorded_with_their_times(followers, tmp_path):
    """Every row of a live file is recorded once, at its time to the microsecond; the end is inferred and says so."""
    path = tmp_path / "log.jsonl"
    writer = followers.write(WRITER, path, 0, 100, 0.02)
    until(path.exists)
    told = ended(followers.follow(path, "--idle", "0.03"))
    writer.wait()
    assert series("loss") == points(0, 100)
    past = followed()
    assert np.array_equal(past.series("loss").time, 1.7e9 + np.arange(100) / 8)
    assert past.state == "finished"
    assert [event["event"] for event in told] == ["found", "began", "ended"]
    assert "(inferred)" in told[-1]["text"]
    assert past.meta["followed"] == {"path": str(path), "format": "jsonl"}
    assert not [name for name in past.names() if name.startswith("process/")]


def test_nothing_is_lost_or_doubled_when_the_follower_is_killed(followers, tmp_path):
    """A second follower goes on in the same run, as its next attempt, with what the first has not written."""
    path = tmp_path / "log.jsonl"
    writer = followers.write(WRITER, path, 0, 200, 0.01)
    until(path.exists)
    first = followers.follow(path)
    until(lambda: count("loss") > 50, "the first rows")
    readers = children(first.pid)
    first.kill()
    first.wait()
    assert readers
    until(lambda: not any(map(alive, readers)), "the end of its readers")
    writer.wait()
    followers.write(WRITER, path, 200, 300, 0).wait()
    told = ended(followers.follow(path, "--idle", "0.03"))
    assert series("loss") == points(0, 300)
    assert followed().attempts == [0, 1]
    assert told[1]["event"] == "continued"


def test_following_again_adds_nothing(followers, tmp_path):
    """What is recorded already is not recorded again, by any number of followers."""
    path = tmp_path / "log.jsonl"
    followers.write(WRITER, path, 0, 20, 0).wait()
    for _ in range(3):
        ended(followers.follow(path, "--once"))
    assert series("loss") == points(0, 20)
    followers.write(WRITER, path, 20, 30, 0).wait()
    ended(followers.follow(path, "--once"))
    assert series("loss") == points(0, 30)


def test_second_follower_of_a_live_run_is_refused(followers, tmp_path):
    """Two followers would record everything twice: the second one names the run, and leaves it alone."""
    path = tmp_path / "log.jsonl"
    followers.write(WRITER, path, 0, 20, 0).wait()
    first = followers.follow(path)
    until(lambda: count("loss") == 20, "the rows")
    second = followers.follow(path, "--once")
    out, errors = second.communicate(timeout=60)
    assert second.returncode == 1
    assert "another process records it" in out + errors
    first.send_signal(signal.SIGINT)
    ended(first)
    assert series("loss") == points(0, 20)


def test_killed_writer_goes_on(followers, tmp_path):
    """A writer that is killed in a line and started again goes on in the same run."""
    path = tmp_path / "log.jsonl"
    followers.write(WRITER, path, 0, 20, 0).wait()
    with path.open("a") as file:
        file.write('{"step": 20, "lo')
    follower = followers.follow(path)
    until(lambda: count("loss") == 20, "the rows before the kill")
    with path.open("a") as file:
        file.write('ss": 0.5}\n')
    followers.write(WRITER, path, 21, 40, 0.01).wait()
    until(lambda: count("loss") == 40, "the rows after it")
    follower.send_signal(signal.SIGINT)
    told = ended(follower)
    assert told[-1]["event"] == "stopped"
    past = wait_until_written(followed())
    assert (past.state, past.cause) == ("interrupted", "stopped following; the training may go on")


def test_truncated_file_goes_on_as_a_new_attempt(followers, tmp_path):
    """A file that is cut and gets other values does not disturb what was recorded."""
    path = tmp_path / "log.jsonl"
    followers.write(WRITER, path, 0, 20, 0).wait()
    follower = followers.follow(path)
    until(lambda: count("loss") == 20, "the first rows")
    path.write_text('{"step": 0, "loss": 7.0}\n')
    until(lambda: count("loss") == 21, "the row of the new file")
    follower.send_signal(signal.SIGINT)
    ended(follower)
    assert series("loss") == [*points(0, 20), (0, 7.0)]
    ended(followers.follow(path, "--once"))
    assert series("loss") == [*points(0, 20), (0, 7.0)]


def test_rewritten_file_adds_only_what_is_new(followers, tmp_path):
    """A CSV that is written again with another column, as Lightning does, doubles nothing."""
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n0,1.0\n1,0.5\n")
    follower = followers.follow(path)
    until(lambda: count("loss") == 2, "the first rows")
    path.write_text("step,loss,acc\n0,1.0,\n1,0.5,\n2,0.25,0.9\n")
    until(lambda: count("loss") == 3, "the new row")
    follower.send_signal(signal.SIGINT)
    ended(follower)
    assert series("loss") == [(0, 1.0), (1, 0.5), (2, 0.25)]
    assert series("acc") == [(2, 0.9)]
    assert followed().attempts == [0]


def test_event_files_are_recorded_as_tensorboard_reads_them(followers, tmp_path):
    """A SummaryWriter's folder, and a second file in it after a restart, give TensorBoard's series."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = tmp_path / "board"
    board.mkdir()
    follower = followers.follow(board)
    for steps in (30, 10):
        followers.write(SUMMARIES, board, steps).wait()
        until(lambda total=steps if steps == 30 else 40: count("acc") == total, "the points of this file")
    follower.send_signal(signal.SIGINT)
    ended(follower)
    seen = {"loss": [], "acc": []}
    for file in sorted(board.iterdir()):
        events = accumulator.EventAccumulator(str(file), size_guidance={"scalars": 0})
        events.Reload()
        seen["loss"] += [(event.step, event.value) for event in events.Scalars("train/loss")]
        seen["acc"] += [(event.step, event.value) for event in events.Scalars("acc")]
    assert {name: series(name) for name in seen} == seen
    assert followed().attempts == [0, 1]


def test_wandb_run_ends_by_its_own_word(followers, tmp_path):
    """A live offline run of W&B gives its values, name and config, and its exit ends the run."""
    pytest.importorskip("wandb")
    writer = followers.write(WANDB, tmp_path, 300)
    path = until(lambda: next(tmp_path.glob("wandb/offline-run-*/*.wandb"), None), "the file of the run")
    told = ended(followers.follow(path))
    assert writer.wait() == 0, writer.stderr.read()
    assert told[-1]["event"] == "ended"
    assert "inferred" not in told[-1]["text"]
    assert series("loss") == points(0, 300)
    assert series("acc") == [(step, step / 3) for step in range(300)]
    past = followed()
    assert (past.name, past.project, past.state) == ("live", "bridge", "finished")
    assert past.config["lr"] == 0.1


def test_folder_takes_every_run_that_appears(followers, tmp_path):
    """Two runs that start later are two runs of ours, and one that has ended long ago is imported."""
    place = tmp_path / "logs"
    place.mkdir()
    old = place / "old.jsonl"
    followers.write(WRITER, old, 0, 5, 0).wait()
    os.utime(old, (time.time() - 86400,) * 2)
    follower = followers.follow(place)
    until(lambda: len(stepscope.runs()) == 1, "the imported run")
    for name in ("a", "b"):
        followers.write(WRITER, place / f"{name}.jsonl", 0, 30, 0.01).wait()

    def lengths():
        past = [stepscope.open(info.path) for info in stepscope.runs()]
        return sorted((one.name, len(one.series("loss"))) for one in past if "loss" in one.names())

    until(lambda: lengths() == [("a.jsonl", 30), ("b.jsonl", 30), ("old.jsonl", 5)], lengths)
    follower.send_signal(signal.SIGTERM)
    assert [event["event"] for event in ended(follower)].count("imported") == 1


def test_console_log_is_followed_and_an_alert_fires(followers, tmp_path):
    """A NaN loss in a program's output fires the alert while it still runs."""
    path = tmp_path / "train.log"
    path.write_text("".join(f"step:{step} loss:{1 / (step + 1):.6f}\n" for step in range(20)))
    follower = followers.follow(path)
    until(lambda: count("loss") == 20, "the first rows")
    with path.open("a") as file:
        file.write("step:20 loss:nan\n")

    def alerts():
        return [event for event in followed().events("alert") if "nan" in json.dumps(event).lower()]

    until(alerts, "the alert")
    assert followed().state == "running"
    assert math.isnan(followed().series("loss").value[-1])
    follower.send_signal(signal.SIGINT)
    ended(follower)


def test_empty_and_missing_files_are_awaited(followers, tmp_path):
    """An empty file is followed once it has rows; a missing one only on request, else the usual sentence says so."""
    missing = followers.follow(tmp_path / "none")
    assert "nothing is there" in missing.communicate(timeout=60)[1]
    assert missing.returncode == 1
    path = tmp_path / "late.jsonl"
    follower = followers.follow(path, "--wait")
    until(lambda: "waiting" in follower.stdout.readline(), "the word that it waits")
    path.touch()
    until(lambda: "empty" in follower.stdout.readline(), "the word that it is empty")
    followers.write(WRITER, path, 0, 10, 0).wait()
    until(lambda: count("loss") == 10, "the rows")
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=60)


def test_many_ranks_in_one_file_are_ranks_of_one_run(followers, tmp_path):
    """A log with a column `rank` becomes one run with as many ranks."""
    path = Path(tmp_path / "ranks.jsonl")
    rows = [{"step": step, "rank": rank, "loss": step + rank / 10} for step in range(10) for rank in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended(followers.follow(path, "--once"))
    past = wait_until_written(followed())
    for rank in range(3):
        assert past.series("loss", rank=rank).value.tolist() == [step + rank / 10 for step in range(10)]
