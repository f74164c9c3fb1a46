"""A rank is judged by what its ring shows, whatever could be written of it."""

from __future__ import annotations

from stepscope.core.feed import Feed
from stepscope.core.records import heads
from tests.store.faults import Disk


class Listener(Feed):
    """Remembers the sequence of every row that it is told of."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def rows(self, rank, pieces, table, *, checked=False):
        self.heard += [number for data in pieces for _, _, _, number, _, _ in heads(data)]


class Steps:
    """A stall detector that counts what it is told."""

    def __init__(self):
        self.rows, self.state = 0, "idle"

    def quiet(self, now):
        return 0.0

    def ended(self, times, began=None):
        return []

    def logged(self, times):
        self.rows += len(times)
        return []

    def look(self, now, *, long_phase=False):
        return []

    def wants_sample(self, now):
        return False

    def stop(self):
        """Judge nothing."""


def begin(stage, **more):
    """Return a trainer whose watcher has met it, a listener and a stall detector."""
    trainer = stage.trainer(**more)
    stage.watcher.feed = Listener()
    stage.tick()
    stage.watcher._ranks[trainer.path].guard.stalls = Steps()
    return trainer, stage.watcher.feed, stage.watcher._ranks[trainer.path].guard.stalls


def test_a_full_disk_hides_no_row_from_those_who_judge(stage, monkeypatch):
    """While nothing can be written, every row still counts as progress and reaches the rules, once."""
    trainer, listener, stalls = begin(stage)
    with monkeypatch.context() as patched:
        disk = Disk(patched, first=1, length=10**9)
        for count in range(50):
            disk.watching = False
            trainer.run.log({"a": float(count)})
            disk.watching = True
            stage.tick(seconds=0.5)
            assert len(listener.heard) == count + 1
        assert stalls.rows == 49  # the last is looked at with the next beat
    trainer.run.log({"a": 50.0})
    stage.tick(times=20)
    assert listener.heard == list(range(51))
    assert stalls.rows == 51
    assert stage.values() == [float(count) for count in range(51)]


def test_a_ring_that_is_lapped_meanwhile_goes_on_being_heard(stage, monkeypatch):
    """A full disk for longer than the ring lasts costs rows, and no judgement."""
    trainer, listener, stalls = begin(stage, ring_bytes=1 << 16)
    with monkeypatch.context() as patched:
        disk = Disk(patched, first=1, length=10**9)
        for count in range(100):
            disk.watching = False
            for part in range(100):
                trainer.run.log({"a": float(count * 100 + part)})
            disk.watching = True
            stage.tick(seconds=0.5)
    stage.tick(times=20)
    assert listener.heard == list(range(10_000))
    assert stalls.rows == 10_000
    assert stage.values()[-1] == 9999.0
