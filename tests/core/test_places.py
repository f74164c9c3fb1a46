from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from stepscope.core import places
from stepscope.core.places import Places, choose_root, find_places, private_directory, shared_root


@pytest.fixture
def shared(tmp_path):
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


def statvfs(monkeypatch, total, free):
    facts = SimpleNamespace(f_blocks=total // 4096, f_bavail=free // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: facts)


def test_everything_is_private(tmp_path, shared):
    """Both directories are made, for this user only."""
    found = find_places({"TMPDIR": str(tmp_path)}, shared_memory=shared)
    assert found.roots() == [shared / f"stepscope-{os.getuid()}", tmp_path / f"stepscope-{os.getuid()}"]
    assert {root.stat().st_mode & 0o777 for root in found.roots()} == {0o700}


def test_override_moves_both(tmp_path, shared):
    """STEPSCOPE_RUNTIME_DIR names the directory on disk, and gives the one in shared memory a name of its own."""
    found = find_places({"STEPSCOPE_RUNTIME_DIR": str(tmp_path / "own")}, shared_memory=shared)
    assert found.disk == tmp_path / "own"
    assert found.shared == shared_root(str(tmp_path / "own"), shared) != shared_root("", shared)


def test_no_shared_memory(tmp_path):
    """Where there is no shared memory, rings go to disk."""
    found = find_places({}, shared_memory=tmp_path / "none", temporary=tmp_path)
    assert (found.shared, found.roots()) == (None, [found.disk])


def test_hostile_shared_memory(tmp_path, shared):
    """A link in the place of our directory in shared memory is not followed: rings go to disk."""
    (shared / f"stepscope-{os.getuid()}").symlink_to(tmp_path)
    assert find_places({}, shared_memory=shared, temporary=tmp_path).shared is None


def test_first_place_that_works(tmp_path, shared, monkeypatch):
    """Where the temporary folder cannot be used the next candidate is."""
    (tmp_path / "file").touch()
    true = places.private_directory
    bad, good = tmp_path / "file" / "x", tmp_path / "y"
    monkeypatch.setattr(places, "private_directory", lambda path: true(good if path == good else bad))
    assert places._first_private([bad, good]) == good
    with pytest.raises(OSError, match="file"):
        places._first_private([bad])


def test_others_directories_are_refused(tmp_path, monkeypatch):
    """A directory that belongs to somebody else is refused."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="not a directory of this user"):
        private_directory(tmp_path)


def test_links_are_refused(tmp_path):
    """A link to a directory is refused, even to one of our own."""
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="not a directory"):
        private_directory(tmp_path / "link")


def test_open_directories_are_closed(tmp_path):
    """A directory of ours that others could enter is made private."""
    (tmp_path / "d").mkdir(mode=0o777)
    (tmp_path / "d").chmod(0o777)
    assert private_directory(tmp_path / "d").stat().st_mode & 0o777 == 0o700


def make_ring(root, name, run="run", size=0):
    folder = Places(None, root).of_run(run, root)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(bytes(size))
    return folder / name


def test_rings_of_a_run_and_of_all(tmp_path):
    """Rings are found by run or all together, without those that this process writes."""
    found = Places(tmp_path / "a", tmp_path / "b")
    first = make_ring(tmp_path / "a", "0.0.x.ring")
    second = make_ring(tmp_path / "b", "0.1.x.ring")
    other = make_ring(tmp_path / "a", "0.0.y.ring", run="other")
    make_ring(tmp_path / "a", "0.0.x.schema")
    assert found.rings("run") == [first, second]
    assert set(found.rings()) == {first, second, other}
    places.HELD.add(first)
    try:
        assert found.rings("run") == [second]
    finally:
        places.HELD.discard(first)


@pytest.mark.parametrize(
    ("total", "free", "others", "in_shared"),
    [
        (1 << 30, 1 << 30, 0, True),
        (64 << 20, 64 << 20, 0, True),  # Docker's default, one ring
        (64 << 20, 64 << 20, 1 << 20, False),  # all of ours would take more than 1/16
        (1 << 30, 16 << 20, 0, False),  # more than 1/8 of what is free
        (1 << 30, 40 << 20, 0, True),
    ],
)
def test_guests_in_shared_memory(tmp_path, monkeypatch, total, free, others, in_shared):
    """A ring goes to shared memory if all of ours take at most 1/16 of it and 1/8 of what is free."""
    found = Places(tmp_path / "a", tmp_path / "b")
    make_ring(tmp_path / "a", "0.0.x.ring", size=others)
    statvfs(monkeypatch, total, free)
    assert choose_root(found, 4 << 20) == (found.shared if in_shared else found.disk)


def test_no_shared_memory_is_disk(tmp_path):
    """Without shared memory, or one that cannot be asked, the ring goes to disk."""
    assert choose_root(Places(None, tmp_path), 1) == tmp_path
    assert choose_root(Places(tmp_path / "gone", tmp_path), 1) == tmp_path
