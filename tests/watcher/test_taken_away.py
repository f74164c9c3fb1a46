"""Parts of a run are taken away under its watcher: it says so, keeps what it can, and ends with its trainer."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from stepscope.core import ring, status
from stepscope.store import salvage
from stepscope.store.layout import FOLDERS
from stepscope.watcher.trouble import PATIENCE
from tests.store.recorded import make_folder

LONGEST = 30.0
"""Seconds after the end of the trainer in which the watcher ends, whatever was done to the run."""
WRITTEN = ("tail", "nodes", "events")
"""Parts that a watcher writes into all the time."""


class Thief:
    """Takes a part of a run away in one of several ways, and gives it back."""

    def __init__(self, part, monkeypatch):
        self.part, self._patches = part, monkeypatch
        self._aside = part.with_name(f"{part.name}.aside")

    def removed(self):
        shutil.rmtree(self.part)

    def renamed(self):
        self.part.rename(self._aside)

    def replaced(self):
        self.part.rename(self._aside)
        self.part.write_text("no folder")

    def forbidden(self):
        """Make the part read-only; modes alone do not keep root from writing."""
        for name in ("open", "mkdir", "replace", "link"):
            self._patches.setattr(os, name, self._refusing(getattr(os, name), name))

    def _refusing(self, true, name):
        def call(path, *arguments, **options):
            writes = name != "open" or arguments[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and str(path).startswith(f"{self.part}/"):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return true(path, *arguments, **options)

        return call

    def give_back(self, way):
        if way == "replaced":
            self.part.unlink()
            self._aside.rename(self.part)
        elif way == "forbidden":
            self._patches.undo()


HOPELESS = [("tail", "replaced"), *((part, way) for part in ("nodes", "events") for way in ("replaced", "forbidden"))]
"""What no watcher can mend."""
WAYS = ("removed", "renamed", "replaced", "forbidden")


def seconds_to_end(stage):
    """Let the watcher go on; return the seconds until it ended."""
    seconds = 0.0
    while stage.tick(seconds=0.5):
        seconds += 0.5
        assert seconds < 10 * LONGEST
    return seconds


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("part", ["", *FOLDERS])
@pytest.mark.parametrize("state", [ring.STATE_RUNNING, ring.STATE_FINISHED, ring.STATE_FAILED])
def test_every_end_is_within_the_limit(stage, monkeypatch, part, way, state):
    """Whatever part is taken in whatever way, the watcher ends within 30 s of its trainer, and says what was wrong."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick(seconds=1, times=4)
    thief = Thief(stage.folder.path / part if part else stage.folder.path, monkeypatch)
    getattr(thief, way)()
    trainer.run.log({"a": 2.0, "note": "an event"})
    alive = stage.tick(seconds=1, times=4)
    is_open = part == "tail" and way == "forbidden"  # the file that it writes to is open
    if not is_open and (part in ("", *WRITTEN) or way in ("removed", "renamed")):
        assert stage.status(trainer) in (status.GONE, status.CUT, status.READ_ONLY, status.REPLACED)
    stage.end(trainer, state)
    stage.dead.add(trainer.path)
    assert not alive or seconds_to_end(stage) < LONGEST
    left = set(stage.places.rings(str(stage.folder.path)))
    gone = part == "" and way != "forbidden"
    assert gone or left <= stage.watcher.bad, "another round would begin with the same ring"


@pytest.mark.parametrize("way", ["removed", "renamed"])
@pytest.mark.parametrize("part", FOLDERS)
def test_what_was_removed_is_made_anew(stage, monkeypatch, part, way):
    """A folder that is taken out of a run comes back, later rows and the end are kept, and the trainer is told once."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick(seconds=1, times=4)
    getattr(Thief(stage.folder.path / part, monkeypatch), way)()
    heard = []
    for count in range(2, 6):
        trainer.run.log({"a": float(count), "note": "an event"})
        stage.tick(seconds=1)
        heard.append(stage.status(trainer))
    stage.end(trainer)
    assert seconds_to_end(stage) < 5
    assert stage.values()[-4:] == [2.0, 3.0, 4.0, 5.0]
    assert stage.past().state == "finished"
    assert (stage.folder.path / part).is_dir()
    assert set(heard) <= {status.OK, status.CUT}
    assert "parts of the run were removed" in (stage.folder.path / "watcher.log").read_text()
    assert not trainer.path.exists()


def test_a_successor_that_names_itself_late_gets_no_row_of_the_removed_run(stage):
    """A folder removed and made again is another run's, also while that run has not written its run.json yet."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick(seconds=1, times=4)
    shutil.rmtree(stage.folder.path)
    stage.folder.make()
    trainer.run.log({"a": 2.0})
    stage.tick(seconds=0.1)
    make_folder(stage.folder.path, created=1_800_000_000_000_000)
    stage.tick(seconds=1, times=4)
    assert stage.past().names() == []
    assert stage.status(trainer) == status.GONE


@pytest.mark.parametrize(("part", "way"), HOPELESS)
def test_what_cannot_be_written_waits_in_the_ring(stage, monkeypatch, part, way):
    """Rows that had nowhere to go are salvaged with the right end once their folder is back."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick(seconds=1, times=4)
    with monkeypatch.context() as patched:
        thief = Thief(stage.folder.path / part, patched)
        getattr(thief, way)()
        trainer.run.log({"a": 2.0, "note": "an event"})
        stage.end(trainer, ring.STATE_FINISHED)
        stage.dead.add(trainer.path)
        assert PATIENCE <= seconds_to_end(stage) + 1 < LONGEST
        thief.give_back(way)
    assert trainer.path.exists()
    assert "giving up on rank 0" in (stage.folder.path / "watcher.log").read_text()
    assert salvage.salvage(stage.places) == 1
    assert stage.values() == [1.0, 2.0]
    assert stage.past().state == "finished"
    assert len(stage.past().events("log")) == 1


@pytest.mark.parametrize("part", FOLDERS)
def test_a_run_that_is_being_removed_is_let_go(stage, part):
    """Whoever removes a run part by part meets no part that has come back meanwhile."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick(seconds=1, times=4)
    shutil.rmtree(stage.folder.path / part)
    trainer.run.log({"a": 2.0})
    stage.tick(seconds=0.1, times=9)
    assert not (stage.folder.path / part).exists()


def test_nodes_that_cannot_be_written_do_not_flood_the_events(stage, monkeypatch):
    """An end that is tried again and again is told by one event."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick()
    Thief(stage.folder.path / "nodes", monkeypatch).replaced()
    stage.end(trainer, ring.STATE_FAILED)
    seconds_to_end(stage)
    assert len(stage.past().events("ended")) == 1


def test_a_dead_trainer_does_not_keep_the_watcher_awake(stage, monkeypatch):
    """While its rows cannot be written, the end of a process wakes the watcher no more."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick()
    stage.watcher._ranks[trainer.path].guard.trainee = Ended()
    assert stage.watcher.trainees()
    Thief(stage.folder.path / "tail", monkeypatch).replaced()
    trainer.run.log({"a": 2.0})
    stage.dead.add(trainer.path)
    stage.watcher.woken = True
    stage.tick()
    assert stage.watcher.trainees() == []


class Ended:
    """A process that is no more."""

    pid = 0

    def status(self):
        return None

    def dead(self):
        return True

    def fileno(self):
        return 0

    def close(self):
        """Hold nothing."""
