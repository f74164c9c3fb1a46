from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stepscope.core.clock import boot_id
from stepscope.core.errors import StepscopeError, UsageError
from stepscope.sources.opened_run import open_run
from stepscope.store import catalog
from stepscope.store.catalog import locate, run_folders, runs, runs_root
from stepscope.store.known_roots import note_root
from stepscope.store.layout import RunFolder
from stepscope.store.states import NodeState, RankState
from tests.store.recorded import make_folder


@pytest.fixture
def root(tmp_path):
    """Three runs in two projects: "20260101-a", "20260102-b", "other-c", made in this order."""
    for created, (project, name) in enumerate((("p", "20260101-a"), ("p", "20260102-b"), ("q", "other-c"))):
        make_folder(tmp_path / project / name, run_id=name, project=project, name=f"n{created}", created=created + 1)
    return tmp_path


def node(folder, node_name="n", **more):
    NodeState(node_name, 0, **more).save(folder)


def test_newest_first(root):
    """Runs are listed newest first, with what is known of each."""
    found = runs(root)
    assert [info.id for info in found] == ["other-c", "20260102-b", "20260101-a"]
    assert (found[0].path, found[0].project, found[0].name, found[0].created) == (
        root / "q" / "other-c",
        "q",
        "n2",
        3e-6,
    )
    assert (found[0].duration, found[0].step) == (None, None)


def test_state_duration_and_step(root):
    """A run lasts from its first rank's start to its last one's end, or to the last sign of life."""
    folder = make_folder(root / "p" / "20260103-d", run_id="20260103-d", created=9)
    ranks = {
        0: RankState("finished", started=1_000_000, ended=5_000_000, step=7),
        1: RankState(started=2_000_000, step=9),
    }
    node(folder, time=4_000_000, ranks=ranks)
    assert (runs(root)[0].duration, runs(root)[0].step) == (4.0, 9)
    ranks[1] = RankState("failed", "why", started=2_000_000, ended=8_000_000)
    node(folder, ended=True, ranks=ranks)
    info = runs(root)[0]
    assert (info.state, info.cause, info.duration) == ("failed", "why", 7.0)


def test_broken_runs_are_listed(root):
    """A run that cannot be read is listed as broken, with the reason, and hides no other."""
    (root / "q" / "other-c" / "run.json").write_text("{")
    (root / "p" / "no-file" / "tail").mkdir(parents=True)
    found = {info.id: info for info in runs(root)}
    assert {name for name, info in found.items() if info.state == "broken"} == {"other-c", "no-file"}
    assert "cannot be read" in found["other-c"].cause
    assert len(found) == 4


def test_other_folders_are_passed_over(root):
    """Folders and files that are no runs, hidden ones too, are passed over."""
    (root / "p" / "notes").mkdir()
    (root / ".hidden" / "x" / "tail").mkdir(parents=True)
    (root / "file").touch()
    assert len(runs(root)) == 3


def test_runs_directly_below_the_root(tmp_path):
    """Runs may lie directly below the folder that is named."""
    make_folder(tmp_path / "lonely", run_id="lonely")
    assert [info.id for info in runs(tmp_path)] == ["lonely"]


@pytest.mark.parametrize("folder", ["none", "file"])
def test_no_runs(tmp_path, folder):
    """Where there is no folder there are no runs."""
    (tmp_path / "file").touch()
    assert runs(tmp_path / folder) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("20260101-a", "p/20260101-a"),
        ("20260102", "p/20260102-b"),
        ("o", "q/other-c"),
        ("latest", "q/other-c"),
        ("p/20260101-a", "p/20260101-a"),
        ("p/20260102", "p/20260102-b"),
        ("n1", "p/20260102-b"),
        ("q/n2", "q/other-c"),
    ],
)
def test_finding_a_run(root, text, found):
    """A run is found by its id, a unique start of it, project/id, its name, or as the latest."""
    assert locate(text, root).path == root / found
    assert open_run(text, root).path == root / found


def test_finding_a_run_by_its_folder(root, monkeypatch):
    """A run is found by its folder, absolute or from here."""
    assert locate(root / "p" / "20260101-a").path == root / "p" / "20260101-a"
    monkeypatch.chdir(root / "p")
    assert locate("20260101-a").path == root / "p" / "20260101-a"
    assert locate(Path()).path if (root / "p" / "run.json").exists() else True


def test_exact_id_wins(root):
    """An id that is also the start of another one is that run."""
    make_folder(root / "p" / "other", run_id="other")
    assert locate("other", root).path.name == "other"


def test_ambiguous_start(root):
    """A start that several runs share is a usage error that names some of them."""
    with pytest.raises(UsageError, match=r"2 runs start so \(20260101-a, 20260102-b\)"):
        locate("2026", root)


def test_no_such_run(root, tmp_path):
    """A run that is not there is an error that says where it was looked for."""
    with pytest.raises(StepscopeError, match="no such id"):
        locate("zzz", root)
    with pytest.raises(StepscopeError, match="there is none"):
        locate("latest", tmp_path / "none")


def test_root_of_the_runs(tmp_path, monkeypatch):
    """The root is the one given, else STEPSCOPE_DIR, else ./stepscope-runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPSCOPE_DIR", str(tmp_path / "env"))
    assert runs_root("here") == tmp_path / "here"
    assert runs_root() == tmp_path / "env"
    monkeypatch.delenv("STEPSCOPE_DIR")
    assert runs_root() == tmp_path / "stepscope-runs"


def test_salvage_that_fails(monkeypatch):
    """A salvage that fails does not keep anybody from reading."""

    def refuse(*_, **__):
        raise OSError("no place")

    monkeypatch.setattr(catalog, "find_places", refuse)
    assert catalog.salvage_quietly() == 0


def test_run_that_goes_while_it_is_listed(tmp_path):
    """A folder that vanishes between listing and looking is a broken run of no age, not an error."""
    assert catalog.changed_at(tmp_path / "gone") == 0.0
    assert catalog.changed_at(tmp_path) == os.stat(tmp_path).st_mtime


def test_of_several_runs_of_one_name_the_newest_is_meant(root):
    """It is said that there are others."""
    make_folder(root / "p" / "again", run_id="again", project="p", name="n0", created=50)
    found = locate("n0", root)
    assert found.path == root / "p" / "again"
    assert found.note == "2 runs are called 'n0': this is the newest, again"


@pytest.fixture
def away(root, tmp_path_factory, monkeypatch):
    """A folder without runs, of a user who has recorded runs elsewhere."""
    note_root(root)
    folder = tmp_path_factory.mktemp("away")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("STEPSCOPE_DIR", raising=False)
    return folder


@pytest.mark.parametrize(
    ("text", "found"), [("latest", "q/other-c"), ("20260102", "p/20260102-b"), ("n0", "p/20260101-a")]
)
def test_runs_are_found_from_any_folder(root, away, text, found):
    """Where this directory has no such run, the folders of the user's other runs are looked through, and named."""
    assert locate(text).path == root / found
    assert str(root) in locate(text).note


def test_a_folder_that_is_named_is_the_only_one(root, away):
    """Who says where to look is told if it is not there."""
    for text in ("latest", "20260102"):
        with pytest.raises(StepscopeError, match=str(away)):
            locate(text, away)


def test_latest_is_one_that_runs(root, away):
    """Of the runs elsewhere one that goes on comes before a newer one that has ended."""
    for path in run_folders(root):
        node(RunFolder(path), ended=True, ranks={0: RankState("finished")})
    alive = {"monotonic_ns": time.monotonic_ns(), "boot_id": boot_id()}
    node(RunFolder(root / "p" / "20260101-a"), **alive, ranks={0: RankState()})
    assert locate("latest").path == root / "p" / "20260101-a"
