from __future__ import annotations

import json
import time

import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.store.known_roots import known_roots, note_root
from stepscope.store.layout import RunFolder
from stepscope.store.states import NodeState, RankState
from tests.integration.processes import until
from tests.store.recorded import make_folder

pytestmark = pytest.mark.processes


@pytest.fixture
def listed(tmp_path, capsys, monkeypatch):
    """Return a function that runs the command on the test's own root and returns what it prints."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        assert main(["runs", "--dir", str(tmp_path), *arguments]) == 0
        return capsys.readouterr().out

    return call


def make(root, number=0, state="finished", cause="", name=None, project="p"):
    """Make the folder of a run that began `number` hours ago."""
    folder = RunFolder(root / project / f"run-{number:03}")
    folder.make()
    now = int((time.time() - number * 3600) * 1e6)
    folder.describe(
        {"format": 1, "id": folder.path.name, "project": project, "name": name or folder.path.name, "created": now}
    )
    rank = RankState(state, cause, step=1200, started=now, ended=now + 90_000_000)
    NodeState("host.abc", 0, 1, now, 0, "another boot", True, {0: rank}).save(folder)
    return folder.path


def test_a_recorded_run_is_listed(listed, tmp_path):
    """A run that was just recorded stands in the list with its name, project, state and last step."""
    with stepscope.init(project="mnist", name="first try", dir=tmp_path) as run:
        for _ in range(3):
            with run.step():
                run.log(loss=1.0)
    until(lambda: stepscope.open(run.path).state == "finished", "the end of the run")
    line = listed().splitlines()[1]
    assert [part in line for part in (run.id, "first try", "mnist", "finished", " 2 ")] == [True] * 5


def test_newest_first_with_duration_and_age(listed, tmp_path):
    """Runs stand newest first, with how long they took and how long ago they began."""
    for number in (3, 1, 2):
        make(tmp_path, number)
    lines = listed().splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["run-001", "run-002", "run-003"]
    assert "  1 200  1 min 30 s  1 h" in lines[1]


def test_the_cause_stands_below(listed, tmp_path):
    """A run that went wrong says why on a line of its own, cut to the width."""
    make(tmp_path, 0, "failed", "RuntimeError: " + "x" * 200)
    line = listed().splitlines()[2]
    assert line.startswith("  RuntimeError: xxx")
    assert line.endswith("…")
    assert len(line) == 80


def test_a_broken_run_is_listed_with_its_reason(listed, tmp_path):
    """A run whose run.json is damaged is listed as broken, with the reason, and hides no other."""
    make(tmp_path, 1)
    (make(tmp_path, 0) / "run.json").write_text("{torn")
    found = listed()
    assert "broken" in found
    assert "run.json cannot be read" in found
    assert "run-001" in found


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"id": 3}',
        '{"format": 1, "id": "x", "created": "soon"}',
        '{"format": 1, "id": "x", "name": {}}',
        "[" * 100_000,
    ],
)
def test_no_run_file_ends_the_list(listed, tmp_path, text):
    """Whatever stands in a run.json, the list is printed."""
    (make(tmp_path) / "run.json").write_text(text)
    assert "broken" in listed()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"node": "n", "ranks": []}',
        '{"node": 1, "attempt": "x"}',
        '{"node":"n","attempt":0,"ranks":{"0":{"started":"x"}}}',
    ],
)
def test_no_node_file_ends_the_list(listed, tmp_path, text):
    """Whatever stands in a node's file, the list is printed."""
    path = make(tmp_path)
    (path / "nodes" / "other.abc-0.json").write_text(text)
    assert "run-000" in listed()


def test_text_of_runs_is_harmless_and_cut(listed, tmp_path):
    """A name with escape sequences is printed without them, and a long one is cut, never the id."""
    make(tmp_path, 0, name="\x1b[31mred\u202e" + "n" * 300)
    found = listed()
    assert not set(found) & set("\x1b\u202e")
    assert "…" in found
    assert all(len(line) <= 80 for line in found.splitlines()[:-1])
    assert "run-000" in found


def test_filters(listed, tmp_path):
    """--project, --state and -n choose; the last line says what is not shown."""
    make(tmp_path, 0)
    make(tmp_path, 1, "failed")
    make(tmp_path, 2, project="q")
    assert "run-001" in listed("--state", "failed")
    assert "run-000" not in listed("--state", "failed")
    assert "1 of 3 runs" in listed("--project", "q")
    assert "the newest 1 shown" in listed("-n", "1")


def test_nothing_says_how_to_begin(listed):
    """Where there is no run the answer says how to record one."""
    found = listed()
    assert "stepscope.init(" in found
    assert "stepscope demo" in found


def test_no_match_is_said(listed, tmp_path):
    """Where runs are and none matches, that is said."""
    make(tmp_path)
    assert "No run matches." in listed("--project", "other")


def test_json_has_the_facts(listed, tmp_path):
    """--json prints all runs with their facts in base units."""
    path = make(tmp_path, 0, "failed", "why")
    facts = json.loads(listed("--json"))
    [run] = facts["runs"]
    assert (facts["root"], facts["total"]) == (str(tmp_path), 1)
    assert (run["path"], run["state"], run["cause"], run["step"], run["duration"]) == (
        str(path),
        "failed",
        "why",
        1200,
        90,
    )


def test_a_thousand_runs_are_listed_within_seconds(listed, tmp_path):
    """Listing 1 000 runs takes a fraction of a second of processor time, and seconds on the slowest machine."""
    for number in range(1000):
        make(tmp_path, number)
    began = time.process_time()
    found = listed("-n", "0")
    assert time.process_time() - began < 10.0
    assert len(found.splitlines()) == 1003


def test_runs_elsewhere_are_named(tmp_path, monkeypatch, capsys):
    """Where this directory has no run, the list says where this user has some."""
    make_folder(tmp_path / "mine" / "p" / "a", run_id="a")
    (tmp_path / "empty").mkdir()
    note_root(tmp_path / "mine")
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.delenv("STEPSCOPE_DIR", raising=False)
    assert main(["runs"]) == 0
    assert f"runs --dir {tmp_path / 'mine'}" in capsys.readouterr().out
    assert main(["show", "a"]) == 0
    assert f"run a is in {tmp_path / 'mine'}" in capsys.readouterr().err
    assert main(["serve", "nowhere"]) == 1
    assert "cannot serve 'nowhere': there is no folder" in capsys.readouterr().err


def test_the_watcher_notes_where_a_run_is(tmp_path):
    """A run that was recorded once is known."""
    with stepscope.init(dir=tmp_path / "runs") as run:
        run.log(x=1.0)
    assert until(lambda: tmp_path / "runs" in [root.path for root in known_roots()], "the note")
