from __future__ import annotations

import json
import os
import time

import pytest

from stepscope.cli.main import main
from stepscope.store.layout import RunFolder
from stepscope.store.states import NodeState, RankState


@pytest.fixture
def gc(tmp_path, capsys, monkeypatch):
    """Return a function that runs the command on the test's own root and returns what it prints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()

    def call(*arguments):
        assert main(["gc", "--dir", str(tmp_path / "runs"), *arguments]) == 0
        return capsys.readouterr().out

    return call


@pytest.fixture
def three(tmp_path):
    """Make three finished runs of 1, 2 and 3 days, of 1 MiB each."""
    for days in (1, 2, 3):
        folder = RunFolder(tmp_path / "runs" / "p" / f"day-{days}")
        folder.make()
        when = int((time.time() - days * 86400) * 1e6)
        folder.describe({"format": 1, "id": folder.path.name, "name": "n", "project": "p", "created": when})
        NodeState("h.abc", 0, 1, when, 0, "", True, {0: RankState("finished", ended=when)}).save(folder)
        (folder.path / "metrics" / "x").write_bytes(bytes(2**20))
        os.utime(folder.path / "claims", (0, 0))
    return tmp_path / "runs" / "p"


def left(project):
    return sorted(os.listdir(project))


def test_without_limits_nothing_goes(gc, three):
    """Without a limit nothing is removed, and the answer says how to give one."""
    text = gc()
    assert "nothing to remove" in text
    assert "no limit is set" in text
    assert len(left(three)) == 3


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (("--max-runs", "2"), ["day-1", "day-2"]),
        (("--max-age-days", "1.5"), ["day-1"]),
        (("--max-size-gb", "0.0015"), ["day-1"]),
        (("--max-runs", "0"), ["day-1", "day-2", "day-3"]),
    ],
)
def test_limits_as_options(gc, three, arguments, kept):
    """Each limit removes the oldest runs beyond it; 0 is no limit."""
    gc(*arguments)
    assert left(three) == kept


def test_dry_run_only_says(gc, three):
    """--dry-run lists what would go with size and reason, and removes nothing."""
    text = gc("--max-runs", "1", "--dry-run")
    assert "would remove 2 runs, 2" in text
    assert "p/day-3" in text
    assert "more than 1 runs" in text
    assert len(left(three)) == 3


@pytest.mark.promise("S1-059")
def test_limits_of_the_configuration(gc, three, tmp_path):
    """`max_database_size_gb` of the configuration is the limit; an option replaces it."""
    (tmp_path / "stepscope.yaml").write_text("performance_tuning:\n  max_database_size_gb: 0.0025\n")
    gc("--max-size-gb", "0")
    assert len(left(three)) == 3
    gc()
    assert left(three) == ["day-1", "day-2"]


def test_json_says_what_went(gc, three):
    """--json has limits, what went and what stayed, in bytes."""
    facts = json.loads(gc("--max-runs", "2", "--json"))
    [gone] = facts["removed"]
    assert (gone["path"], gone["reason"]) == (str(three / "day-3"), "more than 2 runs")
    assert gone["bytes"] > 2**20
    assert (facts["runs"], facts["dry_run"], facts["limits"]["max_runs"]) == (3, False, 2)


def test_leftovers_go_too(gc, three):
    """Temporary files of yesterday go with every call, and are counted."""
    temporary = three / "day-1" / "metrics" / ".tmp-h-0-0-0.parquet"
    temporary.write_bytes(b"x")
    os.utime(temporary, (0, 0))
    assert "would remove 1 leftover file, 1 B" in gc("--dry-run")
    assert temporary.exists()
    assert "removed 1 leftover file" in gc()
    assert not temporary.exists()


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "many"])
def test_a_wrong_limit_is_wrong_usage(gc, value, capsys):
    """A limit is a number that is not negative."""
    with pytest.raises(SystemExit) as stop:
        main(["gc", "--max-size-gb", value])
    assert stop.value.code == 2
    assert "of 0 or more" in capsys.readouterr().err
