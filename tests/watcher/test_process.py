from __future__ import annotations

import fcntl
import json
import os
import signal

import pytest

from stepscope.core.places import WATCHER_LOCK, Places, find_places
from stepscope.store.retention import Removal
from stepscope.watcher import process
from stepscope.watcher.journal import Journal
from tests.store.locks import held
from tests.store.recorded import make_folder


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "project" / "run")


@pytest.fixture
def places(tmp_path):
    (tmp_path / "runtime").mkdir()
    return Places(None, tmp_path / "runtime")


@pytest.fixture
def tame(monkeypatch):
    """A watcher's main that leaves this process as it is: no signals, no priority, no mask, no waiting."""
    monkeypatch.setattr(process, "lower_priority", lambda _: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "umask", lambda _: 0)
    monkeypatch.setattr(process.time, "sleep", lambda _: None)


def test_nothing_to_watch(folder, tame):
    """A watcher without a ring ends at once and leaves no lock behind."""
    assert process.main([str(folder.path), json.dumps({"watcher.drain_interval": 0.01})]) == 0
    assert list(find_places().disk.rglob("*.lock")) == []


def test_clean_up_at_the_end(folder, tame, monkeypatch):
    """Where the configuration asks for it the limits of the store are applied when a run ends; the run itself stays."""
    asked = []

    def apply(root, limits, keep):
        asked.append((root, limits.max_runs, keep))
        return [Removal(root / "project" / "old", 1, "more than 1 runs")]

    monkeypatch.setattr(process, "apply", apply)
    process.main([str(folder.path), json.dumps({"store.max_runs": 1})])
    assert asked == []
    process.main([str(folder.path), json.dumps({"store.auto_cleanup": True, "store.max_runs": 1})])
    assert asked == [(folder.path.parents[1], 1, [folder.path])]
    assert "removed run" in (folder.path / "watcher.log").read_text()


def test_clean_up_that_fails(folder, tmp_path, monkeypatch):
    """Limits that cannot be applied are noted, and the watcher ends well."""

    def refuse(*_, **__):
        raise OSError("read-only")

    monkeypatch.setattr(process, "apply", refuse)
    process._clean_up(folder, {"store.auto_cleanup": True}, Journal(tmp_path / "log"))
    assert "cannot apply the limits" in (tmp_path / "log").read_text()


def lock_path(folder, places):
    return places.of_run(str(folder.path), places.disk) / WATCHER_LOCK


def test_one_watcher_per_run(folder, places):
    """Watchers elect by a lock: while one holds it the others give way; then the next is elected."""
    path = lock_path(folder, places)
    path.parent.mkdir()
    with held(path):
        assert process._elect(folder, places) is None
    descriptor = process._elect(folder, places)
    process._resign(folder, places, descriptor)
    assert list(places.disk.iterdir()) == []


def test_lock_file_that_goes_meanwhile(folder, places, monkeypatch):
    """A lock file that the last watcher takes away between two calls is made anew."""
    true, calls = fcntl.lockf, []

    def lockf(descriptor, *arguments):
        calls.append(descriptor)
        if len(calls) == 1:
            lock_path(folder, places).unlink()
        elif len(calls) == 2:
            lock_path(folder, places).unlink()
            lock_path(folder, places).touch()
        return true(descriptor, *arguments)

    monkeypatch.setattr(fcntl, "lockf", lockf)
    descriptor = process._elect(folder, places)
    assert len(calls) == 3
    os.close(descriptor)


def test_resigning_leaves_rings_alone(folder, places):
    """While a ring is left its folder and the lock file stay."""
    home = places.of_run(str(folder.path), places.disk)
    home.mkdir()
    (home / "x.ring").touch()
    process._resign(folder, places, process._elect(folder, places))
    assert sorted(path.name for path in home.iterdir()) == ["watcher.lock", "x.ring"]


class FakeWatcher:
    """Ticks as it is told: a value to return, or an exception to raise."""

    def __init__(self, *ticks, needed=True):
        self.ticks, self.feed, self.needed, self.is_behind = list(ticks), self, needed, False

    def descriptors(self):
        return {}

    def serve(self):
        """Serve nobody."""

    def trainees(self):
        return []

    def streams(self):
        return [self]

    def waker(self):
        return -1

    def clear_waker(self):
        """Nothing was heard."""

    def writer_alive(self):
        return self.needed

    def rest(self):
        return 0.0

    def tick(self):
        tick = self.ticks.pop(0)
        if isinstance(tick, Exception):
            raise tick
        return tick


def test_loop_outlives_a_fault(tmp_path, tame):
    """A tick that fails is written down, and the next one follows."""
    watcher = FakeWatcher(True, KeyError("x"), RuntimeError("y"), True, False)
    process._watch(watcher, Journal(tmp_path / "log"))
    assert watcher.ticks == []
    assert "cannot finish a tick: KeyError" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(("needed", "most"), [(True, process.MOST_FAILURES), (False, process.LAST_FAILURES)])
def test_loop_that_only_fails(tmp_path, tame, needed, most):
    """A watcher in which every tick fails gives up, sooner without a trainer, and leaves the rows to a salvager."""
    watcher = FakeWatcher(*[KeyError("x")] * 2000, needed=needed)
    assert not process._watch(watcher, Journal(tmp_path / "log"))
    assert len(watcher.ticks) == 2000 - most - 1
