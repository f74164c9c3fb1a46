from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace

import pytest

from stepscope.core.errors import UsageError
from stepscope.exporters.sinks.address import address_of
from stepscope.exporters.sinks.sink import AlertChange, RunNews, SentRow, SinkDeniesError, SinkDownError
from stepscope.exporters.sinks.table import new_sink
from stepscope.exporters.sinks.wandb import files as wandb_files
from stepscope.exporters.sinks.wandb.account import account_of
from stepscope.exporters.sinks.wandb.terms import config, metric, project_name, report_of, run_id, tags, written
from tests.exporters.sinks.batches import RUN
from tests.exporters.sinks.wandb_server import KEY, WandbServer
from tests.importers.foreign import field, wandb_file


def sink(url, tmp_path, **environ):
    return new_sink(address_of(url), {"HOME": str(tmp_path), **environ})


@pytest.fixture
def server():
    made = WandbServer()
    yield made
    made.close()


def test_the_id_of_a_run_is_always_the_same_and_fits():
    """W&B's id follows from our identity, so any helper finds the run again; a new run with our id has another."""
    assert run_id(RUN) == run_id(replace(RUN, name="other")) != run_id(replace(RUN, created=RUN.created + 1))
    hostile = run_id(replace(RUN, id="a/b:c#?'\n" * 50))
    assert len(hostile) <= 64
    assert not set(hostile) & set(":;,#?/'\n")


@pytest.mark.parametrize(
    ("name", "in_wandb"),
    [("loss", "loss"), ("_step", "metric/_step"), ("", "metric/"), ("stepscope/row", "metric/stepscope/row")],
)
def test_a_name_that_w_and_b_keeps_for_itself_is_moved(name, in_wandb):
    """W&B drops `_step` and hides names with _; our own keys must not be overwritten either."""
    assert metric(name) == in_wandb


def test_a_row_keeps_its_place():
    """Id, step, time and attempt go with the values; ranks other than 0 are part of the name."""
    row = written(SentRow(3, 1, 7, None, 12.5, {"loss": math.inf}), "x/")
    assert row == ["3.1.7", None, 12.5, 1, {"x/rank3/loss": math.inf}]


def test_texts_are_made_fit():
    """Lone surrogates, empty and long tags, and characters that no project may have do not stop a run."""
    assert tags(["a", "a", "", " ", "b" * 99, "\ud800"]) == ["a", "b" * 64, "\\ud800"]
    assert project_name("a/b:c") == "a-b-c"
    json.dumps(config(RUN, {"x": ["\udc00", {"y": "\0"}]})).encode()


def test_news_has_the_end_and_the_alerts():
    """State, cause, verdict and alerts are in the summary, so that they are there offline; only a firing one rings."""
    alerts = [
        AlertChange("1", "nan", "critical", "firing", "loss is NaN", 1.0),
        AlertChange("2", "slow", "info", "resolved", "fine", 2.0),
    ]
    news = report_of(RUN, RunNews("failed", "a crash", verdict="too hot", alerts=alerts, progress=0.0))
    assert news["summary"] == {
        "stepscope/state": "failed",
        "stepscope/cause": "a crash",
        "stepscope/verdict": "too hot",
        "stepscope/progress": 0.0,
        "stepscope/alert/nan": "firing (critical): loss is NaN",
        "stepscope/alert/slow": "resolved (info): fine",
    }
    assert news["alerts"] == [("nan in first try", "loss is NaN", "critical")]
    assert report_of(RUN, RunNews(config={"lr": 1}))["config"]["stepscope"]["page"] == RUN.page


@pytest.mark.parametrize("url", ["wandb://me/p/more", "wandb://me/p?mode=turbo", "wandb://me/p?token=x"])
def test_an_address_that_is_none_is_refused(tmp_path, url):
    """More parts than entity and project, unknown modes and unknown options are mistakes to be reported at once."""
    with pytest.raises(UsageError):
        sink(url, tmp_path)


def test_nothing_is_sent_before_the_run_is_open(tmp_path):
    """Calls in the wrong order do nothing but say so."""
    with pytest.raises(SinkDownError, match="not open"):
        sink("wandb://me/p?mode=offline", tmp_path).report(RunNews())
    sink("wandb://me/p?mode=offline", tmp_path).close()


def test_a_node_that_is_not_the_first_needs_the_shared_mode(tmp_path):
    """Two online writers would overwrite each other's rows."""
    with pytest.raises(SinkDeniesError, match="mode=shared"):
        sink("wandb://me/p?mode=online", tmp_path).open(replace(RUN, is_first=False), {})


def test_the_account_is_found_as_w_and_b_finds_it(tmp_path):
    """The address wins over the environment, that over the settings file; the key may be in netrc, and is not shown."""
    (tmp_path / ".config" / "wandb").mkdir(parents=True)
    (tmp_path / ".config" / "wandb" / "settings").write_text("[default]\nbase_url = https://own.example\n")
    (tmp_path / ".netrc").write_text("machine own.example login user password secret1\n")
    (tmp_path / ".netrc").chmod(0o600)
    environ = {"HOME": str(tmp_path)}
    assert account_of(environ) == ("https://own.example", "secret1")
    assert account_of({**environ, "WANDB_API_KEY": "k"}) == ("https://own.example", "k")
    assert account_of({**environ, "WANDB_BASE_URL": "https://b.example/"}) == ("https://b.example", "")
    assert account_of({**environ, "WANDB_BASE_URL": "https://b.example"}, "http://c:1").url == "http://c:1"
    assert "secret1" not in repr(account_of(environ))


def test_probe_says_whose_account_it_is(tmp_path, server):
    """Online, the server is asked whose key it is; nothing is created."""
    pytest.importorskip("wandb")
    said = sink(f"wandb://me/p?base_url={server.url}", tmp_path, WANDB_API_KEY=KEY).probe()
    assert "as ada, project me/p" in said
    assert server.runs == {}


def test_probe_says_what_is_missing(tmp_path, server):
    """Without a key nothing is asked; a dead server is down, not wrong; offline needs neither."""
    pytest.importorskip("wandb")
    with pytest.raises(SinkDeniesError, match="WANDB_API_KEY"):
        sink(f"wandb://?base_url={server.url}", tmp_path).probe()
    with pytest.raises(SinkDeniesError, match="WANDB_MODE"):
        sink("wandb://", tmp_path, WANDB_MODE="disabled").probe()
    assert "offline" in sink("wandb://", tmp_path, WANDB_MODE="offline").probe()
    server.close()
    with pytest.raises(SinkDownError):
        sink(f"wandb://?base_url={server.url}", tmp_path, WANDB_API_KEY=KEY).probe()


def test_probe_says_that_the_package_is_missing(tmp_path, monkeypatch):
    """A folder `wandb` with files of runs is no package."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(SinkDeniesError, match="pip install wandb"):
        sink("wandb://?mode=offline", tmp_path).probe()


def history(name):
    """Return a record with one row of ours."""
    return field(1, 5) + field(2, field(1, field(2, "stepscope/row") + field(16, json.dumps(name))))


def test_rows_are_found_at_the_end_of_large_files(tmp_path):
    """Only the end is read, from the start of a block; a growing file is read further from where it was."""
    records = [history(f"0.0.{number}") for number in range(5000)]
    path = tmp_path / "run-x.wandb"
    path.write_bytes(wandb_file(*records))
    found = wandb_files.RunLog(path, 40_000)
    some = [wandb_files.row_of(record) for record in found.records()]
    assert 500 < len(some) < 2500
    assert some == [f"0.0.{number}" for number in range(5000 - len(some), 5000)]
    assert list(found.records()) == []
    whole = wandb_file(*records, history("0.0.5000"))
    path.write_bytes(whole)
    assert [wandb_files.row_of(record) for record in found.records()] == ["0.0.5000"]


def test_only_what_nobody_writes_and_nobody_uploaded_is_left(tmp_path):
    """A file with rows counts as left behind unless it is offline, marked, or locked by a helper that lives."""
    for name in ("run-1-x", "run-2-x", "run-3-x", "offline-run-4-x", "run-5-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run-x.wandb").write_bytes(wandb_file(*[history("0.0.1")][: name != "run-5-x"]))
    (tmp_path / "run-2-x" / "run-x.wandb.synced").touch()
    held = wandb_files.lock(tmp_path / "run-3-x")
    paths = wandb_files.files_of(tmp_path, "x")
    assert [path.parent.name for path in paths] == ["run-1-x", "run-2-x", "run-3-x", "offline-run-4-x", "run-5-x"]
    assert [path.parent.name for path in wandb_files.not_uploaded(paths)] == ["run-1-x"]
    os.close(held)
    assert [path.parent.name for path in wandb_files.not_uploaded(paths)] == ["run-1-x", "run-3-x"]
