from __future__ import annotations

import os

from stepscope.core import ring
from stepscope.store.drain import Stream
from stepscope.watcher import ranks
from stepscope.watcher.process import pause, wakers
from tests.fakes import readable
from tests.recorder.rig import Rig


def test_a_ring_that_fills_wakes_its_watcher(tmp_path):
    """The waker of a ring is readable once a quarter of it waits, and no longer when that was heeded."""
    rig = Rig(tmp_path, spill=1 << 20)
    stream = Stream(rig.path, 0)
    [waker] = wakers([], [stream])
    for number in range(300):
        rig.run.log({"a": float(number)})
    assert not readable(waker)
    for number in range(300):
        rig.run.log({"a": float(number)})
    assert readable(waker)
    stream.clear_waker()
    assert not readable(waker)
    stream.clear_waker()
    stream.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == []
    stream.close()


def test_no_fifo_is_no_fault(tmp_path):
    """Where the FIFO cannot be made, or something else has its name, rings are looked at by time."""
    rig = Rig(tmp_path)
    rig.path.with_suffix(".wake").write_text("no FIFO")
    stream = Stream(rig.path, 0)
    assert wakers([], [stream]) == []
    stream.clear_waker()
    stream.close()


def test_a_watcher_that_is_behind_does_not_rest(stage, monkeypatch):
    """A tick takes a part of a burst; the next one follows at once, and a sum of them takes all."""
    monkeypatch.setattr(ranks, "BATCHES", 1)
    monkeypatch.setattr(ranks, "BATCH_BYTES", 1 << 16)
    rig = stage.trainer(ring_bytes=1 << 20)
    for number in range(10_000):
        rig.run.log({"a": float(number)})
    stage.tick()
    [stream] = stage.watcher.streams()
    assert pause(0.1, 0.02, [stream]) == 0.0
    stage.tick(times=20)
    assert abs(pause(0.1, 0.02, [stream]) - 0.08) < 1e-9
    assert stage.values() == [float(number) for number in range(10_000)]


def test_a_burst_is_sealed_in_parts(stage):
    """A tail is closed at its size in the middle of a tick: whoever seals it holds it in memory."""
    rig = stage.trainer(ring_bytes=8 << 20)
    for _ in range(50_000):
        rig.run.log({f"v{at}": 1.0 for at in range(10)})
    stage.tick()
    assert stage.sealing.asked == [(0, 0)]
    assert stage.values("v9") == [1.0] * 50_000


def test_a_gap_is_told(stage):
    """A watcher that goes on with another one's ring leaves an event: how long nobody watched, and what was lost."""
    rig = stage.trainer(ring_bytes=ring.HEADER_BYTES + 64 * 256)
    rig.run.log({"a": 0.0})
    stage.tick(times=20)
    assert [event for event in stage.past().events() if event["kind"] == "watcher_restarted"] == []
    stage.watcher = stage.new_watcher()
    for number in range(1000):
        rig.run.log({"a": float(number)})
    lost = 1000 - len(rig.rows())
    stage.tick(12.0, times=2)
    [event] = [event for event in stage.past().events() if event["kind"] == "watcher_restarted"]
    assert event["lost_rows"] == lost > 0
    assert 12.0 <= event["seconds"] <= 12.5
    assert os.path.exists(rig.path)
