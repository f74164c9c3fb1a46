from __future__ import annotations

import errno
import os
import shutil
import time

import pytest

from stepscope.core import ring
from stepscope.core.clock import boot_id
from stepscope.core.endings import NOT_FOLLOWED, SOURCE_ENDED
from stepscope.core.places import Places
from stepscope.store import salvage as salvage_module
from stepscope.store.layout import Writer, node_name
from stepscope.store.salvage import salvage
from stepscope.store.states import KILLED, NodeState, RankState, read_nodes
from tests.recorder.rig import Rig, identity_of
from tests.store.faults import Disk
from tests.store.locks import held
from tests.store.recorded import make_folder


class Wreck:
    """A run with the rings of dead trainers; a lock of this very process does not count."""

    def __init__(self, path):
        self.folder = make_folder(path / "run")
        (path / "runtime").mkdir()
        self.places = Places(None, path / "runtime")
        self.notes, self.rings = [], []

    def ring(self, rank=0, attempt=0, **more):
        home = self.places.of_run(str(self.folder.path), self.places.disk)
        home.mkdir(exist_ok=True)
        identity = identity_of(self.folder.path.parent, rank, attempt)
        self.rings.append(Rig(home, **{"identity": identity, "ring_bytes": 1 << 18, **more}))
        return self.rings[-1]

    def salvage(self):
        return salvage(self.places, note=self.notes.append)

    def past(self):
        from stepscope.store.reader import Past

        return Past(self.folder)

    def rank(self, number=0):
        [node] = read_nodes(self.folder)[0]
        return node.ranks[number]


@pytest.fixture
def wreck(tmp_path):
    return Wreck(tmp_path)


def test_rows_of_a_dead_trainer(wreck):
    """The rows of a ring that nobody writes and nobody drains come home, its end is told, and it goes."""
    rig = wreck.ring()
    for number in range(5000):
        rig.run.log({"a": float(number)})
    rig.run.log({"note": "last words"})
    newest = rig.rows()[0][0]
    assert wreck.salvage() == 1
    past = wreck.past()
    assert past.series("a").step.tolist() == list(range(newest, 5000))
    assert [event["values"] for event in past.events()] == [{"note": "last words"}]
    assert (past.state, past.cause) == ("killed", KILLED)
    rank = wreck.rank()
    assert (rank.inferred, rank.step, rank.rows, rank.lost) == (True, 5000, 5001 - newest, newest)
    assert not rig.path.exists()
    assert wreck.salvage() == 0


@pytest.mark.parametrize(("word", "state"), [(ring.STATE_FINISHED, "finished"), (ring.STATE_FAILED, "failed")])
def test_end_that_the_trainer_told(wreck, word, state):
    """A trainer that said how it ended is believed."""
    rig = wreck.ring()
    rig.run.event("exception", error="ValueError: x")
    rig.reader.set_word(ring.WORD_STATE, word)
    wreck.salvage()
    assert wreck.past().state == state


@pytest.mark.parametrize("told", [True, False])
def test_end_of_a_followed_run(wreck, told):
    """The follower's last word is the end of the source; without one, only the following has ended."""
    identity = identity_of(wreck.folder.path.parent, 0, 0)
    rig = wreck.ring(identity=identity._replace(extra={**identity.extra, ring.FOLLOWED: True}))
    rig.run.log({"a": 1.0})
    if told:
        rig.run.own_event(SOURCE_ENDED, state="failed", cause="exit code 3", certain=True)
        rig.reader.set_word(ring.WORD_STATE, ring.STATE_FINISHED)
    wreck.salvage()
    expected = ("failed", "exit code 3") if told else NOT_FOLLOWED
    assert (wreck.past().state, wreck.past().cause) == expected
    assert wreck.rank().inferred is not told


def test_ring_of_a_live_trainer(wreck):
    """A ring whose trainer lives, in whatever pid namespace, is left alone."""
    rig = wreck.ring()
    rig.run.log({"a": 1.0})
    rig.unlock()
    with held(rig.path, ring.LOCK_WRITER):
        assert wreck.salvage() == 0
        assert rig.path.exists()
    assert wreck.salvage() == 1


def test_ring_that_is_being_drained(wreck):
    """A ring that has a consumer is left to it."""
    rig = wreck.ring()
    with held(rig.path, ring.LOCK_READER):
        assert wreck.salvage() == 0
    assert wreck.notes == []


def test_several_ranks_and_attempts(wreck):
    """All ranks and attempts come home, each as what it is."""
    for rank, attempt in ((0, 0), (1, 0), (0, 1)):
        wreck.ring(rank, attempt).run.log({"a": 10.0 * attempt + rank})
    assert wreck.salvage() == 3
    found = wreck.past().series("a")
    assert list(zip(found.rank.tolist(), found.attempt.tolist(), found.value.tolist(), strict=True)) == [
        *((0, 0, 0.0), (0, 1, 10.0), (1, 0, 1.0))
    ]


def test_what_the_watcher_knew(wreck):
    """What a watcher wrote down before it died too is kept: a cause, the last step, the other ranks."""
    writer = Writer(node_name(wreck.places.disk, boot_id()), 0)
    NodeState(writer.node, 0, ranks={0: RankState(step=77, started=5), 1: RankState("finished", ended=9)}).save(
        wreck.folder
    )
    wreck.ring()
    wreck.salvage()
    assert wreck.rank().step == 77
    assert wreck.rank(1).state == "finished"


def test_run_that_was_deleted(wreck):
    """Rows of a run that was deleted have no home: their ring goes, and no folder is made."""
    rig = wreck.ring()
    shutil.rmtree(wreck.folder.path)
    wreck.salvage()
    assert not rig.path.exists()
    assert not wreck.folder.path.exists()


def test_run_that_was_made_anew(wreck):
    """Rows never come into another run that was made in the same place."""
    home = wreck.places.of_run(str(wreck.folder.path), wreck.places.disk)
    home.mkdir()
    identity = identity_of(wreck.folder.path.parent, extra={"created": 1})
    rig = Rig(home, identity=identity)
    rig.run.log({"a": 1.0})
    wreck.salvage()
    assert wreck.past().names() == []


def test_full_disk(wreck, monkeypatch):
    """On a full disk the ring stays, the reason is noted, and the next salvage brings everything home, once."""
    rig = wreck.ring()
    for number in range(20):
        rig.run.log({"a": float(number), "note": "x"})
    for first in range(1, 9):
        with monkeypatch.context() as patched:
            Disk(patched, first=first, length=30)
            wreck.salvage()
        assert rig.path.exists() or first > 1
    wreck.salvage()
    assert wreck.past().series("a").value.tolist() == [float(number) for number in range(20)]
    assert len(wreck.past().events()) == 20
    assert any("tried again next time" in note for note in wreck.notes)


@pytest.mark.parametrize("size", [0, 50, 200, ring.HEADER_BYTES, 1 << 17])
def test_truncated_ring(wreck, size):
    """A ring that was cut is noted and left; nothing is raised, and the others come home."""
    rig, other = wreck.ring(), wreck.ring(rank=1)
    other.run.log({"a": 1.0})
    os.truncate(rig.path, size)
    assert wreck.salvage() == 1
    assert rig.path.exists()
    assert len(wreck.notes) == 1
    assert wreck.past().series("a").rank.tolist() == [1]


def test_damaged_header_after_opening(wreck):
    """A ring whose head is impossible is noted, not followed for hours."""
    rig = wreck.ring()
    rig.reader.set_word(ring.WORD_HEAD, 1 << 55)
    assert wreck.salvage() == 0
    assert "damaged" in wreck.notes[0]


def test_old_damaged_rings_go(wreck):
    """A ring that cannot be read is deleted when it is a week old and nobody holds it."""
    rig, young = wreck.ring(), wreck.ring(rank=1)
    for damaged in (rig, young):
        os.truncate(damaged.path, 10)
    old = time.time() - (salvage_module.STALE_DAYS + 1) * 86400
    os.utime(rig.path, (old, old))
    rig.unlock()
    with held(rig.path, ring.LOCK_WRITER):
        wreck.salvage()
        assert rig.path.exists()
    wreck.salvage()
    assert not rig.path.exists()
    assert not rig.schema.exists()
    assert young.path.exists()


def test_only_the_run_that_was_asked_for(wreck):
    """A salvage of one run leaves the rings of others."""
    rig = wreck.ring()
    assert salvage(wreck.places, "/another/run") == 0
    assert rig.path.exists()
    assert salvage(wreck.places, str(wreck.folder.path)) == 1


def test_rings_of_the_caller(wreck):
    """Rings that the caller drains itself are left to it."""
    rig = wreck.ring()
    assert salvage(wreck.places, except_for=[rig.path]) == 0
    assert rig.path.exists()


def test_one_salvage_at_a_time(wreck, monkeypatch):
    """A salvage that never ends, as in a process forked out of one, keeps nobody from reading."""

    class Held:
        def acquire(self, timeout):
            return False

    monkeypatch.setattr(salvage_module, "_ONE_AT_A_TIME", Held())
    wreck.ring()
    assert wreck.salvage() == 0


def test_folder_of_a_live_watcher(wreck):
    """The runtime folder of a run goes with its last ring, unless its watcher lives and sees to that."""
    rig = wreck.ring()
    home = rig.path.parent
    with held(home / salvage_module.WATCHER_LOCK):
        wreck.salvage()
        assert home.is_dir()
    wreck.ring()
    wreck.salvage()
    assert not home.exists()


def test_locks_that_a_watcher_left_in_its_last_moment(wreck):
    """A watcher killed after its last ring was gone leaves locks and folders; whoever looks at the run removes them."""
    home = wreck.places.of_run(str(wreck.folder.path), wreck.places.disk)
    home.mkdir()
    for name in ("watcher.lock", "seal.lock"):
        (home / name).touch()
    assert wreck.salvage() == 0
    assert home.exists()
    assert salvage(wreck.places, str(wreck.folder.path)) == 0
    assert not home.exists()


def test_a_lock_that_cannot_be_opened(wreck, monkeypatch):
    """On a full or read-only disk a run can be read, and nothing is deleted: its watcher may be alive."""

    def refused(*_):
        raise OSError(errno.EROFS, "read-only file system")

    monkeypatch.setattr(salvage_module, "locked", refused)
    lock = wreck.places.of_run(str(wreck.folder.path), wreck.places.disk) / salvage_module.WATCHER_LOCK
    lock.parent.mkdir()
    lock.touch()
    assert salvage(wreck.places, str(wreck.folder.path)) == 0
    assert lock.exists()


def test_rings_that_were_never_finished(wreck):
    """What a process left that was killed while it made its ring is deleted when it is old."""
    home = wreck.ring().path.parent
    for name in ("old", "young", "alone"):
        (home / f".{name}.ring.new").touch()
        if name != "alone":
            (home / f"{name}.schema").touch()
    for name in ("old", "alone"):
        os.utime(home / f".{name}.ring.new", (0, 0))
    salvage_module._sweep(wreck.places)
    names = {path.name for path in home.iterdir()}
    assert {".young.ring.new", "young.schema"} <= names
    assert not names & {".old.ring.new", "old.schema", ".alone.ring.new"}


@pytest.mark.parametrize(("state", "salvaged"), [(ring.STATE_RUNNING, 0), (ring.STATE_FINISHED, 1)])
def test_a_young_ring_is_left_to_its_watcher(wreck, state, salvaged, monkeypatch):
    """A trainer that died moments after its start has a watcher on its way, who can tell why; one that finished not."""
    moment = {"monotonic_ns": time.monotonic_ns(), "boot_id": boot_id()}
    identity = identity_of(wreck.folder.path.parent, 0, 0)._replace(**moment)
    wreck.ring(identity=identity).reader.set_word(ring.WORD_STATE, state)
    monkeypatch.setattr(salvage_module, "GRACE_SECONDS", 1e9)
    assert wreck.salvage() == salvaged
    monkeypatch.setattr(salvage_module, "GRACE_SECONDS", 0.0)
    assert wreck.salvage() == 1 - salvaged
