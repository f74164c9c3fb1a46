from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.sink import AlertChange, RunNews, SentRow, SinkDeniesError, SinkDownError
from stepscope.exporters.sinks.table import new_sink
from stepscope.exporters.sinks.wandb.children import started_by
from stepscope.importers.binary import wandb
from tests.exporters.sinks.batches import RUN, batch_of
from tests.exporters.sinks.wandb_rows import files_in, rows_in, summary_in
from tests.integration.processes import until

pytest.importorskip("wandb")
pytestmark = [pytest.mark.processes, pytest.mark.slow]


def made(tmp_path, **environ):
    """Return a sink that writes offline below a folder."""
    url = f"wandb://me/p?mode=offline&dir={tmp_path}"
    return new_sink(address_of(url), {"HOME": str(tmp_path), "PATH": os.environ["PATH"], **environ})


@pytest.fixture
def sink(tmp_path):
    opened = made(tmp_path)
    opened.open(RUN, {})
    yield opened
    opened.close()


def persistently(call):
    """Make a call until the sink is not down; return how often it was."""
    for downs in range(100):
        with contextlib.suppress(SinkDownError):
            call()
            return downs
    raise AssertionError("it stays down")


def kill(pids):
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(pid, signal.SIGKILL)


def test_every_row_is_there_as_it_was(sink, tmp_path):
    """Repeated steps, steps that go back, attempts, rows without a step, NaN and infinities survive with their time."""
    rows = [
        SentRow(0, 0, 0, 10, RUN.created + 1, {"loss": 1.5, "lr": 1e-300}),
        SentRow(0, 0, 1, 3, RUN.created + 2, {"loss": math.nan}),
        SentRow(0, 0, 2, 3, RUN.created + 3, {"loss": math.inf, "x": -math.inf}),
        SentRow(0, 1, 0, 2, RUN.created + 2.5, {"loss": 0.1}),
        SentRow(2, 0, 0, 0, RUN.created, {"loss": 7.0}),
        SentRow(-1, 0, 0, None, RUN.created + 9, {"cpu/usage_ratio": 0.5}),
        SentRow(-3, 0, 0, None, RUN.created + 9, {"cpu/usage_ratio": 0.25}),
    ]
    sink.send(batch_of(rows))
    found = rows_in(tmp_path)
    assert [row["stepscope/row"] for row in found] == [row.id for row in rows]
    assert [row.get("stepscope/step") for row in found] == [row.step for row in rows]
    assert [row["_timestamp"] for row in found] == [row.time for row in rows]
    assert [row.get("stepscope/attempt", 0) for row in found] == [row.attempt for row in rows]
    ours = [{key: float(row[key]) for key in sorted(row) if key[0] != "_" and key[:9] != "stepscope"} for row in found]
    assert repr(ours) == repr(
        [
            {"loss": 1.5, "lr": 1e-300},
            {"loss": math.nan},
            {"loss": math.inf, "x": -math.inf},
            {"loss": 0.1},
            {"rank2/loss": 7.0},
            {"cpu/usage_ratio": 0.5},
            {"node2/cpu/usage_ratio": 0.25},
        ]
    )
    read = wandb.FORMAT.read(str(files_in(tmp_path)[0]))
    assert read.series("loss").step.tolist() == [10, 3, 3, 2]


def test_news_is_in_the_file(tmp_path):
    """Configuration, tags, state, cause, verdict and alerts are written; the run ends in W&B as it ended here."""
    sink = made(tmp_path)
    sink.open(RUN, {})
    alerts = [AlertChange("1", "nan", "critical", "firing", "loss is NaN", 1.0, 3)]
    sink.report(RunNews(config={"lr": 1.0, "deep": {"x": [1]}}, tags=("new",), notes="why", alerts=alerts))
    sink.report(RunNews("failed", "exit code 1", verdict="It diverged."))
    sink.close()
    sink.close()
    [path] = files_in(tmp_path)
    facts = wandb.FORMAT.read(str(path)).facts
    assert (facts["state"], facts["config"]["lr"], facts["config"]["deep"]) == ("failed", 1.0, {"x": [1]})
    assert facts["config"]["stepscope"]["page"] == RUN.page
    assert (facts["project"], facts["name"], facts["group"], facts["tags"]) == ("p", "first try", "seeds", ["new"])
    said = {key: value for key, value in summary_in(tmp_path).items() if key.startswith("stepscope/")}
    assert said.pop("stepscope/updated") > 0
    assert said == {
        "stepscope/state": "failed",
        "stepscope/cause": "exit code 1",
        "stepscope/verdict": "It diverged.",
        "stepscope/alert/nan": "firing (critical): loss is NaN",
    }


def test_hostile_names_and_values_arrive(sink, tmp_path):
    """No name makes W&B drop a row or break its file."""
    names = ["_step", "_timestamp", "", ".", "a", "a.b", "a..b", "a\\.b", 'q"\\', "损失", "x" * 5000, "*", "a*b"]
    names += ["\n", "\0", "\udc80", "stepscope/step", "stepscope/row", "_wandb", "a/b/", " ", "max", "\u202e"]
    values = dict(zip(names, map(float, range(len(names))), strict=True))
    rows = [SentRow(0, 0, seq, step, RUN.created, values) for seq, step in enumerate([2**62, -5, None])]
    rows += [SentRow(0, 0, 10 + seq, 0, RUN.created, {name: 5e-324}) for seq, name in enumerate(names)]
    sink.send(batch_of(rows))
    found = rows_in(tmp_path)
    assert [row["stepscope/row"] for row in found] == [row.id for row in rows]
    assert found[0]["stepscope/step"] == 2**62
    for row in found[:3]:
        assert {float(number) for number in range(len(names))} - {*row.values()} == set()


def test_a_batch_that_comes_twice_is_stored_once(sink, tmp_path):
    """A sender that ended before it noted our answer sends the batch again, to this helper or to another."""
    rows = [SentRow(0, 0, seq, seq, RUN.created, {"a": 1.0}) for seq in range(20)]
    sink.send(batch_of(rows[:10]))
    sink.send(batch_of(rows[:10]))
    again = made(tmp_path)
    again.open(RUN, {})
    again.send(batch_of(rows))
    again.close()
    assert Counter(row["stepscope/row"] for row in rows_in(tmp_path)) == Counter(row.id for row in rows)


def test_no_kill_loses_or_doubles_a_row(sink, tmp_path):
    """Helper and W&B's core are killed in the midst of batches and right after `send`; each row is there once."""
    chance = random.Random(7)
    rows = [SentRow(0, 0, seq, seq, RUN.created + seq, {"a": float(seq), "b": 1.0}) for seq in range(1200)]
    downs = 0
    for number in range(12):
        helper = sink.helper_pid
        pids = [[helper], started_by(helper), [helper, *started_by(helper)]][number % 3]
        delay = 0.0 if number % 4 == 0 else chance.uniform(0, 0.06)
        part = batch_of(rows[number * 100 : number * 100 + 100])
        timer = threading.Timer(delay, kill, [list(pids)])
        if number % 4 == 3:
            sink.send(part)
            kill(pids)
        else:
            timer.start()
            downs += persistently(lambda part=part: sink.send(part))
            timer.join()
        persistently(lambda: sink.send(batch_of([])))
    assert downs >= 3
    assert Counter(row["stepscope/row"] for row in rows_in(tmp_path)) == Counter(row.id for row in rows)
    assert len(files_in(tmp_path)) >= 10


SENDER = """
import sys, os
from stepscope.exporters.sinks.sink import SentRow
from tests.exporters.sinks.batches import RUN, batch_of
from tests.exporters.sinks.test_wandb_offline import made
sink = made(sys.argv[1])
sink.open(RUN, {})
for seq in range(10000):
    sink.send(batch_of([SentRow(0, 0, seq, seq, RUN.created, {"a": 1.0})]))
    print(seq, flush=True)
"""


def test_a_killed_sender_has_lost_nothing_that_was_confirmed(tmp_path):
    """When the sender is killed, what `send` confirmed is in the file, and no process stays."""
    command = [sys.executable, "-c", SENDER, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as sender:
        confirmed = [int(sender.stdout.readline()) for _ in range(30)]
        left = [sender.pid, *started_by(sender.pid)]
        sender.kill()
    found = {row["stepscope/row"] for row in rows_in(tmp_path)}
    assert {f"0.0.{seq}" for seq in confirmed} <= found
    assert until(lambda: not any(is_alive(pid) for pid in left))


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_missing_package_is_told(tmp_path, monkeypatch):
    """The helper that cannot import W&B says so, and rows wait."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "wandb.py").write_text("raise ImportError('no')\n")
    # The helper looks in the interpreter's own folders first: only a module that is loaded before hides the package.
    code = "import sys; sys.modules['wandb'] = None; from {0} import main; sys.exit(main([]))"
    program = "stepscope.exporters.sinks.wandb.run_writer"
    environ = os.pathsep.join(path for path in sys.path if path)
    monkeypatch.setattr("stepscope.exporters.sinks.wandb.process.arguments", lambda _: ["-c", code.format(program)])
    sink = made(tmp_path, PYTHONPATH=environ)
    with pytest.raises(SinkDeniesError, match="pip install wandb"):
        sink.open(RUN, {})
    sink.close()


def test_a_helper_that_hangs_is_killed_in_time(sink, monkeypatch):
    """A missed deadline is SinkDownError; the next call starts another helper."""
    before = sink.helper_pid
    monkeypatch.setattr("stepscope.exporters.sinks.wandb.sink.BUDGET", 1.0)
    os.kill(before, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(SinkDownError, match="in time"):
        sink.send(batch_of([SentRow(0, 0, 0, 0, RUN.created, {"a": 1.0})]))
    assert time.monotonic() - start < 5
    assert not is_alive(before)
    monkeypatch.setattr("stepscope.exporters.sinks.wandb.sink.BUDGET", 27.0)
    persistently(lambda: sink.send(batch_of([SentRow(0, 0, 0, 0, RUN.created, {"a": 1.0})])))
    assert sink.helper_pid != before
