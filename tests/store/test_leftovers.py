"""What killed processes left in the runtime directories goes, and nothing else does."""

from __future__ import annotations

import os
import threading
import time

import pytest

from stepscope.core.places import Places, find_places, private_directory
from stepscope.store.salvage import IDLE_SECONDS, ORPHAN_SECONDS, salvage, sweep_folders
from tests.store.locks import held


@pytest.fixture
def places(tmp_path):
    (tmp_path / "shm").mkdir()
    return find_places({}, shared_memory=tmp_path / "shm", temporary=tmp_path)


def folder(root, *names, name="run-1", age=2 * ORPHAN_SECONDS):
    """Return a run's folder with these files in it, all of that age in seconds."""
    place = private_directory(root / name)
    then = time.time() - age
    for each in names:
        (place / each).touch()
        os.utime(place / each, (then, then))
    os.utime(place, (then, then))
    return place


@pytest.mark.parametrize(
    "names", [(), ("watcher.lock",), ("watcher.lock", "seal.lock"), ("0.0.ab.schema", "0.0.ab.alerting")]
)
def test_what_nobody_uses_goes(places, names):
    """An empty folder, locks that nobody holds and files whose ring is gone are removed, in all roots."""
    left = [folder(root, *names) for root in places.roots()]
    sweep_folders(places)
    assert not any(place.exists() for place in left)


@pytest.mark.parametrize("name", ["0.0.ab.ring", ".0.0.ab.ring.new"])
def test_a_ring_keeps_its_folder(places, name):
    """A ring, also one that is being made, is for the salvager."""
    left = [folder(root, name, "watcher.lock") for root in places.roots()]
    sweep_folders(places)
    assert all((place / name).exists() for place in left)


def test_a_folder_that_was_just_made_stays(places):
    """Somebody is about to make a ring in it; the same holds for a schema whose ring comes next."""
    empty = folder(places.disk, age=IDLE_SECONDS / 2)
    schema = folder(places.shared, "0.0.ab.schema", age=ORPHAN_SECONDS / 2)
    sweep_folders(places)
    assert empty.is_dir()
    assert (schema / "0.0.ab.schema").exists()


def test_a_lock_that_is_held_keeps_its_folder(places):
    """A watcher that lives has its lock, whatever its age."""
    place = folder(places.disk, "watcher.lock")
    with held(place / "watcher.lock"):
        sweep_folders(places)
        assert (place / "watcher.lock").exists()
    sweep_folders(places)
    assert not place.exists()


def test_a_folder_of_our_own_is_not_looked_at(places):
    """The locks of this process would be lost by a look at them."""
    place = folder(places.disk, "watcher.lock")
    sweep_folders(places, {place.name})
    assert place.is_dir()


def test_empty_roots_of_other_runtime_directories_go(places, tmp_path):
    """Each STEPSCOPE_RUNTIME_DIR has a root in shared memory; one that is empty and old goes, with its empty runs."""
    others = [places.shared.with_name(f"{places.shared.name}-{number:08x}") for number in range(4)]
    for other in others:
        folder(other.parent, name=other.name)
    folder(others[1])
    folder(others[2], "0.0.ab.ring")
    os.utime(others[1], (1, 1))
    os.utime(others[3])
    foreign = folder(places.shared.parent, name="stepscope-99999999")
    sweep_folders(places)
    sweep_folders(places, now=time.time() + 2 * IDLE_SECONDS)
    assert [other.exists() for other in others] == [False, False, True, False]
    assert foreign.exists()
    assert places.shared.exists()


def test_a_link_is_not_followed(places, tmp_path):
    """What looks like a folder of ours and leads elsewhere is left alone."""
    elsewhere = folder(tmp_path, "watcher.lock", name="elsewhere")
    (places.disk / "run-2").symlink_to(elsewhere)
    sweep_folders(places)
    assert (elsewhere / "watcher.lock").exists()


def test_the_folder_of_somebody_else_stays(places, monkeypatch):
    """Only folders of this user are looked into."""
    place = folder(places.disk)
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    sweep_folders(Places(None, places.disk))
    assert place.is_dir()


def test_every_salvage_sweeps(places):
    """`init`, by its watcher, and every command that looks at runs salvage first."""
    place = folder(places.shared)
    salvage(places)
    assert not place.exists()


def test_a_process_that_makes_its_folder_meanwhile_gets_it(places, monkeypatch):
    """Rings can be made in a folder while others sweep as eagerly as they can."""
    monkeypatch.setattr("stepscope.store.salvage.IDLE_SECONDS", -1.0)
    stop = threading.Event()

    def sweep():
        while not stop.is_set():
            sweep_folders(places)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    made = 0
    try:
        for number in range(200):
            for _ in range(50):  # `_make_ring` has three tries and sweepers sixty seconds of patience
                try:
                    place = private_directory(places.shared / f"run-{number}")
                    (place / "0.0.ab.ring").touch()
                    made += 1
                    break
                except FileNotFoundError:
                    continue
    finally:
        stop.set()
        sweeper.join()
    assert made == 200
    assert len(list(places.shared.glob("*/*.ring"))) == 200
