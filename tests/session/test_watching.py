from __future__ import annotations

import errno
import os
import threading

import pytest

from stepscope.core import ring, status
from stepscope.core.places import Places
from stepscope.core.spawn import SpawnError
from stepscope.session.watching import LONGEST_PAUSE, STALE_SECONDS, DrainThread, Watch
from stepscope.store.reader import Past
from tests.recorder.rig import Rig, identity_of
from tests.store.faults import Disk
from tests.store.recorded import make_folder

SECOND = 1_000_000_000


def refuse(*_):
    raise SpawnError("no more processes")


class Scene:
    """A run, its ring, and what would be started for it."""

    def __init__(self, path):
        self.folder = make_folder(path / "run")
        (path / "runtime").mkdir()
        self.places = Places(None, path / "runtime")
        self.rig = Rig(path, identity=identity_of(path), ring_bytes=1 << 18)
        self.calls = []

    def watch(self, start=None, **more):
        return Watch(self.folder.path, ("{}",), start or (lambda *values: self.calls.append(values)), **more)

    def thread(self, interval=0.001):
        return DrainThread(self.folder.path, self.rig.path, self.places, interval)

    def past(self):
        return Past(self.folder)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def joined():
    """Wait for the thread that restarts a watcher."""
    for thread in threading.enumerate():
        if thread.name == "stepscope-restart":
            thread.join(60)


def test_watcher_is_started(scene):
    """A run has its watcher started, with its folder, its pace and the process that it comes from."""
    scene.watch().begin(scene.rig.path, scene.places)
    assert scene.calls == [("stepscope.watcher.process", str(scene.folder.path), "{}", str(os.getpid()))]


def beat(watch, scene, heartbeat, seconds):
    """Look at these seconds; return at which of them a watcher was started."""
    starts = []
    for now in seconds:
        before = len(scene.calls)
        watch.look(heartbeat=round(heartbeat * SECOND), born=0, now=now * SECOND)
        joined()
        starts += [now] * (len(scene.calls) - before)
    return starts


def test_stale_watcher_is_started_anew(scene):
    """A watcher that was not heard of for ten seconds is started anew, again and again, with growing pauses."""
    watch = scene.watch()
    assert beat(watch, scene, 0, [9]) == []
    assert beat(watch, scene, 50, [59]) == []
    starts = beat(watch, scene, 50, range(60, 400))
    assert starts[:6] == [61, 66, 76, 96, 136, 196]
    assert starts[-1] - starts[-2] == LONGEST_PAUSE


def test_watcher_that_has_let_go_of_the_ring(scene):
    """One whose process has ended need not be waited for so long."""
    watch = scene.watch(is_drained=lambda: False)
    assert beat(watch, scene, 0, [3, 9]) == []  # it has not come yet
    assert beat(watch, scene, 50, [51, 52, 53]) == [53]


def test_a_watcher_that_lives_ends_the_growing(scene):
    """After one that lived for a minute the next is started as soon as the first was."""
    watch = scene.watch()
    assert beat(watch, scene, 10, range(10, 60)) == [21, 26, 36, 56]
    assert beat(watch, scene, 200, [201]) == []
    assert beat(watch, scene, 200, range(205, 230)) == [211, 216, 226]


def test_the_gap_is_told(scene, capsys):
    """The loss of a watcher is told, and when the next has come: after how long, and how many rows were lost."""
    lost = [7]
    watch = scene.watch(count_lost=lambda: lost[0])
    beat(watch, scene, 10, range(10, 30))
    lost[0] = 12
    beat(watch, scene, 29.5, [30, 31])
    lost[0] = 20
    beat(watch, scene, 31, range(31, 50))
    beat(watch, scene, 49, [50])
    assert [line.removeprefix("stepscope: ") for line in capsys.readouterr().err.splitlines()] == [
        "the watcher of this run was not heard of for 11 s; a new one is started, rows wait for it",
        "the watcher is back after 20 s; 5 rows were lost",
        "the watcher of this run was not heard of for 11 s; a new one is started, rows wait for it",
        "the watcher is back after 18 s; no row was lost",
    ]


def test_watcher_that_never_came(scene):
    """A watcher that never came counts from the birth of the run."""
    watch = scene.watch()
    watch.look(heartbeat=0, born=5 * SECOND, now=round((6 + STALE_SECONDS) * SECOND))
    joined()
    assert len(scene.calls) == 1


def test_restart_that_fails(scene, capsys):
    """A watcher that cannot be started anew is told, and rows stay where they are."""
    scene.watch(refuse).look(heartbeat=0, born=0, now=60 * SECOND)
    joined()
    assert "cannot restart the watcher: no more processes" in capsys.readouterr().err


def test_no_more_threads(scene, monkeypatch, capsys):
    """Where no thread can be started either, that is told and nothing is raised."""

    def no_thread(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    scene.watch().look(heartbeat=0, born=0, now=60 * SECOND)
    watch = scene.watch(refuse)
    watch.begin(scene.rig.path, scene.places)
    watch.stop()
    said = capsys.readouterr().err
    assert "cannot restart the watcher: can't start new thread" in said
    assert "cannot start a thread either" in said


def test_thread_instead_of_a_process(scene, capsys):
    """Where no process can be started a thread drains, says so, and the run is whole in the end."""
    watch = scene.watch(refuse)
    watch.begin(scene.rig.path, scene.places)
    assert "a thread of this process writes the run" in capsys.readouterr().err
    for number in range(100):
        scene.rig.run.log({"a": float(number)})
    watch.look(heartbeat=0, born=0, now=60 * SECOND)
    scene.rig.reader.set_word(ring.WORD_STATE, ring.STATE_FINISHED)
    watch.stop()
    watch._thread.join(60)
    assert scene.past().series("a").value.tolist() == [float(number) for number in range(100)]
    assert scene.past().state == "finished"
    assert scene.rig.reader.words()[ring.WORD_ENDED] == 1
    assert not scene.rig.path.exists()


def test_thread_on_a_failing_disk(scene, monkeypatch):
    """A thread whose disk fails says so in the ring, and leaves the ring if it cannot write the end."""
    scene.rig.run.log({"a": 1.0})
    scene.rig.reader.set_word(ring.WORD_STATE, ring.STATE_FINISHED)
    with monkeypatch.context() as patched:
        Disk(patched, first=1, length=1000)
        scene.thread().run()
    assert scene.rig.reader.words()[ring.WORD_STATUS] == status.DISK_FULL
    assert scene.rig.path.exists()


@pytest.mark.parametrize("first", range(2, 9))
def test_thread_on_a_disk_that_fails_late(scene, monkeypatch, first):
    """Whichever call of the end fails, no row is lost."""
    scene.rig.run.log({"a": 1.0, "note": "x"})
    scene.rig.reader.set_word(ring.WORD_STATE, ring.STATE_FINISHED)
    with monkeypatch.context() as patched:
        disk = Disk(patched, first=first, number=errno.EIO)
        scene.thread().run()
    assert scene.rig.path.exists() or scene.past().series("a").value.tolist() == [1.0]
    assert not disk.failed or scene.rig.reader.words()[ring.WORD_STATUS] == status.IO_ERROR


def test_thread_without_a_ring(scene, capsys):
    """A thread that cannot open the ring says so and ends."""
    scene.rig.path.unlink()
    scene.thread().run()
    assert "cannot write the run" in capsys.readouterr().err


def test_more_rows_than_one_go(scene, monkeypatch):
    """A ring that is fuller than one go takes is drained over several."""
    monkeypatch.setattr("stepscope.session.watching.BATCHES", 1)
    for number in range(3000):
        scene.rig.run.log({"a": float(number)})
    scene.rig.reader.set_word(ring.WORD_STATE, ring.STATE_FINISHED)
    for _ in range(10):
        scene.thread().run()
        if not scene.rig.path.exists():
            break
    assert scene.past().series("a").step.tolist()[-1] == 2999


def test_thread_drains_while_the_run_goes_on(scene):
    """A thread drains again and again until the run ends."""
    thread = scene.thread()
    looks = []

    class Ending:
        def wait(self, _):
            looks.append(len(looks))
            scene.rig.run.log({"a": float(len(looks))})
            if len(looks) == 3:
                scene.rig.reader.set_word(ring.WORD_STATE, ring.STATE_FINISHED)
            return False

    thread._ending = Ending()
    thread.run()
    assert scene.past().series("a").value.tolist() == [1.0, 2.0, 3.0]
