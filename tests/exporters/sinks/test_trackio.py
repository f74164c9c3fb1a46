"""Rules of the Trackio sink, read back through Trackio itself."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.sink import AlertChange, RunNews, SentRow
from stepscope.exporters.sinks.table import new_sink
from tests.exporters.sinks import trackio_reader
from tests.exporters.sinks.batches import RUN, batch_of

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("trackio") is None, reason="needs trackio"),
]
START = 1_795_000_001.000_001


def rows(number=3):
    """Return rows of two ranks and of the watcher."""
    training = [SentRow(0, 0, step, step, START + step, {"loss": 1 / (step + 1), "lr": 0.1}) for step in range(number)]
    other = [SentRow(1, 0, 0, 0, START, {"loss": 2.0})]
    watcher = [SentRow(-1, 0, 0, None, START + 0.5, {"gpu/0/power_watts": 250.0})]
    return [*training, *other, *watcher]


def opened(folder, known=None, run=RUN, **facts):
    """Return an open sink that writes to a folder, and what it wants kept."""
    sink = new_sink(address_of(f"trackio://?dir={folder}", **facts), {})
    return sink, sink.open(run, known or {})


def read(folder, project="mnist"):
    """Return what Trackio holds after its dashboard has imported what lies there."""
    done = subprocess.run(
        [sys.executable, trackio_reader.__file__, project],
        env={**os.environ, "TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def only(found):
    """Return the one run."""
    (run,) = found["runs"]
    return run


def values(logs):
    """Return what was logged, without the record that carries the configuration."""
    return [(log.pop("step", None), log.pop("timestamp"), log) for log in logs if len(log) > 2 or "step" not in log]


def test_every_row_arrives_with_its_step_time_and_values(tmp_path):
    """Trackio reads back each row under our names, and the machine's rows as system metrics over time."""
    sink, _ = opened(tmp_path, prefix="ours/")
    sink.send(batch_of(rows()))
    run = only(read(tmp_path))
    assert run["name"] == "first try"
    assert sorted(values(run["logs"]), key=str) == sorted(
        [
            (0, "2026-11-18T11:06:41.000001+00:00", {"ours/loss": 1.0, "ours/lr": 0.1}),
            (1, "2026-11-18T11:06:42.000001+00:00", {"ours/loss": 0.5, "ours/lr": 0.1}),
            (2, "2026-11-18T11:06:43.000001+00:00", {"ours/loss": 1 / 3, "ours/lr": 0.1}),
            (0, "2026-11-18T11:06:41.000001+00:00", {"ours/rank1/loss": 2.0}),
        ],
        key=str,
    )
    machine = [(None, "2026-11-18T11:06:41.500001+00:00", {"ours/gpu/0/power_watts": 250.0})]
    assert values(run["system"]) == machine


def test_a_row_is_stored_once_however_often_it_is_sent(tmp_path):
    """The same rows again change nothing, before an import and after Trackio has imported and deleted the files."""
    sink, known = opened(tmp_path)
    sink.send(batch_of(rows()))
    sink.send(batch_of(rows()))
    assert len(values(only(read(tmp_path))["logs"])) == 4
    again, _ = opened(tmp_path, known)
    again.send(batch_of(rows(5)))
    found = read(tmp_path)
    assert found["imported"] == 7
    assert len(values(only(found)["logs"])) == 6
    assert len(only(found)["system"]) == 1


def test_a_sink_that_was_killed_before_it_kept_anything_finds_its_run(tmp_path):
    """Opening twice with nothing known gives one run and the same ids."""
    sink, known = opened(tmp_path)
    sink.send(batch_of(rows()))
    other, second = opened(tmp_path)
    other.send(batch_of(rows()))
    assert known["run_id"] == second["run_id"]
    assert known["writer"] != second["writer"]
    assert len(values(only(read(tmp_path))["logs"])) == 4


def test_a_run_whose_id_was_used_again_is_another_run(tmp_path):
    """A run that was created at another time shares nothing with the first."""
    for created in (RUN.created, RUN.created + 60):
        sink, _ = opened(tmp_path, run=replace(RUN, created=created))
        sink.send(batch_of(rows()))
    assert [len(values(run["logs"])) for run in read(tmp_path)["runs"]] == [4, 4]


def test_hostile_names_and_extreme_values_arrive(tmp_path):
    """Reserved, odd and very long names, and numbers at the edge, lose no value and no line."""
    wanted = {
        "step": 1.0,
        "timestamp": 2.0,
        "__step": 3.0,
        "损失/ä😀": math.nan,
        'a"b\\c\u2028d\x85e': math.inf,
        "'; drop table metrics; --": -math.inf,
        "x" * 256: 1.7976931348623157e308,
        "tiny": 5e-324,
        "minus zero": -0.0,
        "precise": 0.1 + 0.2,
        "../../etc/passwd": 1e300,
    }
    sink, _ = opened(tmp_path)
    sink.send(batch_of([SentRow(0, 0, 0, 2**62, START, wanted), SentRow(0, 0, 1, 5, START, {"bad\ud800name": 1.0})]))
    first, second = values(only(read(tmp_path))["logs"])
    renamed = {"__step": 1.0, "__timestamp": 2.0, "____step": 3.0}
    plain = {name: value for name, value in wanted.items() if name not in {"step", "timestamp", "__step"}}
    assert first[0] == 2**62
    assert {name: repr(value) for name, value in first[2].items()} == {
        name: repr(value) for name, value in {**renamed, **plain}.items()
    }
    assert second[2] == {"bad?name": 1.0}


def test_configuration_comes_with_the_run_and_is_kept_up_to_date(tmp_path):
    """Trackio shows the configuration before the first row, then the latest one, with tags, notes and a link back."""
    deep = {"lr": math.nan, "big": 2**70, "nested": {}}
    place = deep["nested"]
    for _ in range(400):
        place["more"] = {}
        place = place["more"]
    sink, _ = opened(tmp_path, run=replace(RUN, config=deep))
    first = only(read(tmp_path))["config"]
    assert math.isnan(first["lr"])
    assert first["big"] == hex(2**70)
    assert first["_Group"] == "seeds"
    assert first["stepscope"]["page"] == RUN.page
    sink.report(RunNews(config={"lr": 0.5}, tags=("new",), notes="better"))
    run = only(read(tmp_path))
    assert run["config"]["lr"] == 0.5
    assert (run["config"]["stepscope"]["tags"], run["config"]["stepscope"]["notes"]) == (["new"], "better")
    assert len(run["logs"]) == 1


def test_news_are_told_once(tmp_path):
    """Alerts, the end and the verdict are alerts in Trackio, each once however often they are reported."""
    alerts = [
        AlertChange("a1", "loss_spike", "critical", "firing", "loss jumped", START, 7),
        AlertChange("a1", "loss_spike", "critical", "resolved", "loss is back", START + 5, 9),
    ]
    end = RunNews("failed", "CUDA out of memory", START + 9, "Memory grew.", alerts, RUN.config, RUN.tags, RUN.notes)
    sink, known = opened(tmp_path)
    sink.report(end)
    sink.report(end)
    assert len(only(read(tmp_path))["alerts"]) == 4
    again, _ = opened(tmp_path, known)
    again.report(end)
    found = {alert["title"]: (alert["level"], alert["text"], alert["step"]) for alert in only(read(tmp_path))["alerts"]}
    assert found == {
        "loss_spike": ("error", "loss jumped", 7),
        "loss_spike resolved": ("info", "loss is back", 9),
        "Run failed": ("error", "CUDA out of memory", None),
        "Diagnosis": ("info", "Memory grew.", None),
    }


def test_a_renamed_run_stays_one_run(tmp_path):
    """A run that gets another name keeps the first one in Trackio."""
    sink, known = opened(tmp_path)
    sink.send(batch_of(rows()))
    again, _ = opened(tmp_path, known, replace(RUN, name="second name"))
    again.send(batch_of(rows(5)))
    assert only(read(tmp_path))["name"] == "first try"


def test_the_folder_is_the_one_that_trackio_uses():
    """Without `dir` the folder is the one that Trackio itself would use under each environment."""
    from stepscope.exporters.sinks.trackio.inbox import default_folder

    environments = (
        {"HOME": "/h"},
        {"HOME": "/h", "XDG_CACHE_HOME": "/x"},
        {"HOME": "/h", "HF_HOME": "~/hf/$WHO", "WHO": "me"},
        {"HOME": "/h", "HF_HOME": "/hf", "TRACKIO_DIR": "/t"},
    )
    code = "from trackio import utils; print(utils.TRACKIO_DIR)"
    basic = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    for environ in environments:
        done = subprocess.run(
            [sys.executable, "-c", code], env={**basic, **environ}, capture_output=True, text=True, check=True
        )
        assert default_folder(environ) == Path(done.stdout.strip())
