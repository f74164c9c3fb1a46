"""A watcher whose disk fails or whose folder disappears."""

from __future__ import annotations

import errno
import shutil

import pytest

from stepscope.core import status
from stepscope.store import salvage
from stepscope.watcher.trouble import FULL_PATIENCE
from tests.store.faults import ERRNOS, Disk


def test_jump_that_cannot_be_written(stage, monkeypatch):
    """A jump on a full disk is noted, and the watcher goes on."""
    stage.trainer()
    stage.tick()
    stage.clock.wall += 3600 * 10**9
    with monkeypatch.context() as patched:
        Disk(patched, first=1, length=50)
        assert stage.tick()
    assert stage.past().events("clock_jump") == []


def test_folder_removed(stage):
    """When the run's folder is deleted the watcher stops, says so in the ring, and makes no new folder."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick()
    shutil.rmtree(stage.folder.path)
    trainer.run.log({"a": 2.0})
    assert not stage.tick()
    assert stage.status(trainer) == status.GONE
    assert not stage.folder.path.exists()


def test_tail_removed(stage):
    """When only the tail file is deleted, rows go on in a new one."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick()
    stage.folder.all_tails()[0].path.unlink()
    trainer.run.log({"a": 2.0})
    stage.tick(times=12)
    assert stage.values() == [2.0]


def test_another_run_in_the_same_place(stage):
    """Rows never go into another run that was made in the same place meanwhile."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick()
    shutil.rmtree(stage.folder.path)
    stage.folder.make()
    stage.folder.run_file.write_text('{"format": 1, "id": "other", "created": 5}')
    trainer.run.log({"a": 2.0})
    stage.tick()
    assert stage.past().names() == []
    assert stage.status(trainer) == status.GONE


@pytest.mark.parametrize("number", ERRNOS, ids=errno.errorcode.get)
@pytest.mark.parametrize("length", [1, 3, 40])
def test_disk_that_fails(stage, monkeypatch, number, length):
    """The trainer is told what is wrong and, later, that it is over; no row is lost and none is there twice."""
    trainer = stage.trainer()
    stage.tick()
    told = []
    with monkeypatch.context() as patched:
        disk = Disk(patched, first=2, length=length, number=number)
        for count in range(40):
            disk.watching = False
            trainer.run.log({"a": float(count), f"n{count}": 1.0, "note": f"{count}"})
            disk.watching = True
            stage.tick()
            told.append(stage.status(trainer))
    stage.tick(times=3)
    wrong = status.from_error(OSError(number, ""))
    assert told[0] in (wrong, status.OK)
    assert wrong in told
    assert stage.status(trainer) == status.RECOVERED
    assert stage.values() == [float(count) for count in range(40)]
    assert [event["values"]["note"] for event in stage.past().events("log")] == [str(count) for count in range(40)]
    stage.end(trainer)
    assert not stage.tick(seconds=3)
    assert stage.past().state == "finished"
    assert stage.node().ranks[0].lost == 0


@pytest.mark.parametrize("first", range(1, 24))
def test_fault_at_each_call_of_the_end(stage, monkeypatch, first):
    """Whichever call fails while a rank ends, its end is written down and its rows are all there."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick()
    trainer.run.log({"a": 2.0, "note": "last words"})
    stage.end(trainer)
    with monkeypatch.context() as patched:
        Disk(patched, first=first, number=errno.EIO, most=100)
        while stage.tick():
            pass
    assert stage.past().state == "finished"
    assert stage.values() == [1.0, 2.0]
    assert len(stage.past().events("log")) == 1
    assert not trainer.path.exists()


def test_new_rank_learns_of_a_full_disk(stage, monkeypatch):
    """A rank that joins while the disk is full is told so too."""
    first = stage.trainer()
    stage.tick()
    second = stage.trainer(rank=1)
    first.run.log({"a": 1.0})
    with monkeypatch.context() as patched:
        Disk(patched, first=1, length=1000)
        stage.tick(times=8)
        assert stage.status(second) == status.DISK_FULL
    stage.tick()
    assert stage.status(second) == status.RECOVERED


def test_patience_with_a_full_disk(stage, monkeypatch):
    """Rows of a dead trainer wait ten minutes for space; then they are left to a salvager, and are not lost."""
    trainer = stage.trainer()
    stage.tick()
    trainer.run.log({"a": 1.0})
    stage.dead.add(trainer.path)
    with monkeypatch.context() as patched:
        Disk(patched, first=1, length=10**6)
        assert stage.tick()
        assert stage.tick(seconds=FULL_PATIENCE - 10)
        assert not stage.tick(seconds=20)
    assert trainer.path.exists()
    assert salvage.salvage(stage.places) == 1
    assert stage.values() == [1.0]


def test_live_trainer_on_a_full_disk(stage, monkeypatch):
    """A watcher whose trainer lives stays, however long the disk is full."""
    trainer = stage.trainer()
    stage.tick()
    trainer.run.log({"a": 1.0})
    with monkeypatch.context() as patched:
        Disk(patched, first=1, length=10**6)
        assert stage.tick(seconds=FULL_PATIENCE, times=3)
