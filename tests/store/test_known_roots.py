"""Where a user's runs are."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepscope.store import known_roots as known
from stepscope.store.known_roots import FORGOTTEN, known_roots, note_root, place, reachable


@pytest.fixture
def environ(tmp_path):
    """A user with a home."""
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}


def test_folders_are_noted_the_last_used_first(environ, tmp_path):
    """Each folder is known once, private to the user, and comes first when it is used again."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name, when in (("a", 10), ("b", 20), ("a", 30)):
        assert note_root(tmp_path / name, environ) == ""
        note = next(root.note for root in known_roots(environ) if root.path == tmp_path / name)
        os.utime(note, (when, when))
    assert [(root.path, root.used) for root in known_roots(environ)] == [(tmp_path / "a", 30), (tmp_path / "b", 20)]
    folder = place(environ)
    assert folder == tmp_path / "home/.local/state/stepscope/roots"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("home", ["", "/proc/nothing"])
def test_without_a_home_they_lie_beside_the_rings(environ, tmp_path, home):
    """A container without a home, or with one that cannot be written, has a place all the same."""
    assert note_root(tmp_path / "a", {**environ, "HOME": home}) == ""
    assert [root.path for root in known_roots({**environ, "HOME": home})] == [tmp_path / "a"]


def test_what_is_no_note_is_passed_over(environ, tmp_path):
    """Damaged notes, links and other files neither count nor hide the others."""
    note_root(tmp_path / "a", environ)
    folder = place(environ)
    for name, text in (("x.root", b"relative"), ("y.root", b"/a\0b"), ("z.root", b"/" * 9999), ("other", b"/b")):
        (folder / name).write_bytes(text)
    (folder / "link.root").symlink_to("/etc/hostname")
    (folder / "folder.root").mkdir()
    assert [root.path for root in known_roots(environ)] == [tmp_path / "a"]


def test_folders_that_are_gone_for_long_are_forgotten(environ, tmp_path):
    """One that is away stays known for a month: its disk may come back."""
    (tmp_path / "kept").mkdir()
    now = note_root(tmp_path / "now", environ)
    for name, age in (("away", 1.0), ("gone", FORGOTTEN + 9), ("kept", FORGOTTEN + 9)):
        note_root(tmp_path / name, environ)
        [note] = [root for root in known_roots(environ) if root.path == tmp_path / name]
        os.utime(note.note, (note.used - age,) * 2)
    note_root(tmp_path / "now", environ)
    assert now == ""
    assert {root.path.name for root in known_roots(environ)} == {"now", "away", "kept"}


def test_a_folder_that_does_not_answer_counts_as_away(tmp_path, monkeypatch):
    """A server that is gone holds nobody up."""
    answered, real, times = known.threading.Event(), Path.is_dir, iter([0.0, 0.0, 1000.0])
    monkeypatch.setattr(Path, "is_dir", lambda path: answered.wait(60) if path.name == "dead" else real(path))
    monkeypatch.setattr(known, "time", SimpleNamespace(monotonic=lambda: next(times)))  # time passes for the dead one
    assert reachable([tmp_path, tmp_path / "dead"], seconds=60) == [tmp_path]
    answered.set()


def test_a_place_that_cannot_be_made_is_told(tmp_path):
    """Nothing is raised, and the reason is returned."""
    (tmp_path / "file").touch()
    environ = {"STEPSCOPE_RUNTIME_DIR": str(tmp_path / "file")}
    assert note_root(tmp_path, environ) != ""
    assert known_roots(environ) == []
