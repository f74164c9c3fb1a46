from __future__ import annotations

import os

import pytest

from stepscope.core import ring, status
from stepscope.core.config import load
from stepscope.core.vocabulary import metric_of, unit_of
from stepscope.store.states import KILLED
from stepscope.watcher import ranks
from stepscope.watcher.loop import WatcherPace, resident_bytes
from tests.store.locks import held
from tests.watcher.stage import Stage


def test_rows_are_on_disk_after_a_tick(stage):
    """What was logged before a tick can be read after it, while the trainer goes on."""
    trainer = stage.trainer()
    for number in range(5):
        trainer.run.log({"a": float(number)})
    assert stage.tick()
    assert stage.values() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert stage.node().ranks[0].state == "running"


def test_nothing_to_watch(stage):
    """A watcher without a ring has nothing to do, and says so at once."""
    assert not stage.tick()


def test_a_ring_that_fills_slowly_is_looked_at_half_as_often(stage):
    """Ticks are twice as far apart while little comes, and no longer once much does or a trainer ends."""
    trainer = stage.trainer(ring_bytes=1 << 20)
    trainer.run.log({"a": 1.0})
    stage.tick()
    assert stage.watcher.rest() == pytest.approx(2 * WatcherPace().drain)
    for number in range(500):
        trainer.run.log({"a": float(number)})
    stage.tick()
    assert stage.watcher.rest() == WatcherPace().drain
    stage.tick()
    assert stage.watcher.rest() == pytest.approx(2 * WatcherPace().drain)
    stage.end(trainer)
    stage.tick()
    assert stage.watcher.rest() == WatcherPace().drain


def test_last_seal_is_waited_for(stage):
    """A watcher stays until what it asked to be sealed is sealed."""
    stage.sealing.busy = True
    assert stage.tick()
    stage.sealing.busy = False
    assert not stage.tick()


def test_many_rows_in_one_tick(stage):
    """However many rows came since the last tick, one rank does not keep the others waiting for ever."""
    first, second = stage.trainer(), stage.trainer(rank=1)
    for number in range(3000):
        first.run.log({"a": float(number)})
        second.run.log({"a": float(number)})
    stage.tick(times=3)
    assert len(stage.values()) == 6000


def test_more_than_a_tick_takes(stage, monkeypatch):
    """A ring that is fuller than a tick takes is drained over several."""
    monkeypatch.setattr(ranks, "BATCHES", 1)
    trainer = stage.trainer(ring_bytes=4 << 20)
    for number in range(30_000):
        trainer.run.log({"a": float(number)})
    stage.tick()
    assert 0 < len(stage.values()) < 30_000
    stage.end(trainer)
    stage.tick(times=4)
    assert len(stage.values()) == 30_000
    assert stage.past().state == "finished"


def test_ranks_that_join_later(stage):
    """A rank whose ring appears later is found within half a second."""
    stage.trainer().run.log({"a": 1.0})
    stage.tick()
    stage.trainer(rank=1).run.log({"a": 2.0})
    stage.tick(times=6)
    assert stage.values(rank=1) == [2.0]
    stage.tick(times=20)
    assert sorted(stage.node().ranks) == [0, 1]


@pytest.mark.parametrize(
    ("word", "state"),
    [(ring.STATE_FINISHED, "finished"), (ring.STATE_EXITED, "finished"), (ring.STATE_FAILED, "failed")],
)
def test_ends_that_the_trainer_told(stage, word, state):
    """The end of a rank is what its trainer said; its ring and schema file go, and it is told so."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick()
    trainer.run.log({"a": 2.0})
    stage.end(trainer, word)
    assert not stage.tick()
    rank = stage.node().ranks[0]
    assert (rank.state, rank.rows, rank.lost, rank.refused, rank.step) == (state, 2, 0, 0, 1)
    assert rank.ended == stage.clock.wall // 1000
    assert trainer.reader.words()[ring.WORD_ENDED] == 1
    assert not trainer.path.exists()
    assert not trainer.schema.exists()
    assert stage.values() == [1.0, 2.0]


def test_cause_of_a_failure(stage):
    """A failed rank's cause is the exception that it reported last."""
    trainer, other = stage.trainer(), stage.trainer(rank=1)
    trainer.run.own_event("exception", error="ValueError: first")
    trainer.run.own_event("exception", error="ValueError: NaN in the loss")
    other.run.own_event("exception", error="KeyError: not mine")
    stage.end(trainer, ring.STATE_FAILED)
    stage.tick()
    assert stage.node().ranks[0].cause == "ValueError: NaN in the loss"
    assert stage.past().state == "failed"
    assert stage.past().cause == "ValueError: NaN in the loss"


def test_failure_without_words(stage):
    """A failed rank that reported nothing has no cause, and damaged events do not get in the way."""
    trainer = stage.trainer()
    stage.tick()
    (stage.folder.path / "events" / "node-0.jsonl").write_text("{damaged\n")
    stage.end(trainer, ring.STATE_FAILED)
    stage.tick()
    assert (stage.node().ranks[0].state, stage.node().ranks[0].cause) == ("failed", "an exception that left no text")


def test_killed_trainer(stage):
    """A trainer that is gone without a word was killed; every row it logged is there."""
    trainer = stage.trainer()
    stage.tick()
    for number in range(10):
        trainer.run.log({"a": float(number)})
    stage.dead.add(trainer.path)
    assert not stage.tick()
    assert (stage.past().state, stage.past().cause) == ("killed", KILLED)
    assert len(stage.values()) == 10


def test_dead_trainer_with_an_unreadable_record(stage):
    """What a dead trainer left unreadable in its ring does not keep its end from being written down."""
    trainer = stage.trainer(machine="aarch64")
    for number in range(3):
        trainer.run.log({"a": float(number)})
    os.pwrite(trainer.descriptor, b"\xff", ring.HEADER_BYTES + 2 * 48 + 35)
    stage.tick(times=3)
    assert stage.node().ranks[0].state == "running"
    stage.dead.add(trainer.path)
    assert not stage.tick()
    assert stage.past().state == "killed"
    assert stage.values() == [0.0, 1.0]


@pytest.mark.parametrize("size", [100, ring.HEADER_BYTES + 100])
def test_ring_truncated_under_us(stage, size):
    """A ring that is cut while it is watched is given up; the other ranks go on."""
    trainer, other = stage.trainer(), stage.trainer(rank=1)
    trainer.run.log({"a": 1.0})
    stage.tick()
    for _ in range(200):
        trainer.run.log({"a": 2.0})
    other.run.log({"a": 3.0})
    os.truncate(trainer.path, size)
    assert stage.tick()
    assert stage.node().ranks[0].state == "lost"
    assert "truncated" in stage.node().ranks[0].cause
    assert stage.values(rank=1) == [3.0]
    stage.end(other)
    assert not stage.tick(times=7)
    assert stage.past().state == "lost"
    assert "any more" in (stage.folder.path / "watcher.log").read_text()


def test_only_ring_truncated(stage):
    """When the only ring is given up the run has ended."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick()
    os.truncate(trainer.path, 100)
    assert not stage.tick()
    assert stage.node().ended
    assert stage.sealing.asked == [(0, 0)]


def test_file_that_is_no_ring(stage):
    """A file that is no ring is noted once and left alone."""
    home = stage.places.of_run(str(stage.folder.path), stage.places.disk)
    home.mkdir()
    (home / "odd.ring").write_bytes(b"nonsense")
    stage.tick(times=3)
    assert (home / "odd.ring").exists()
    assert (stage.folder.path / "watcher.log").read_text().count("cannot read ring") == 1


def test_heartbeat(stage):
    """The node file tells a beat every two seconds: a counter that advances, and both clocks."""
    stage.trainer()
    counters = []
    for _ in range(60):
        stage.tick()
        counters.append(stage.node().counter)
    assert counters[-1] == 3
    assert counters == sorted(counters)
    node = stage.node()
    assert stage.clock.monotonic - node.monotonic_ns < 2e9
    assert stage.clock.wall // 1000 - node.time < 2e6


def test_heartbeat_after_a_slow_disk(stage, monkeypatch):
    """A heartbeat has the time at which it is written, however long the tick waited for its disk."""
    monkeypatch.setattr("stepscope.store.tail._sync", lambda _: stage.clock.go_on(7.0))
    stage.trainer().run.log({"a": 1.0})
    stage.tick()
    assert stage.node().time == stage.clock.wall // 1000
    assert stage.node().monotonic_ns == stage.clock.monotonic


def test_heartbeat_in_the_ring(stage):
    """Each tick leaves its time in the ring, for the trainer to see that it is watched."""
    trainer = stage.trainer()
    stage.tick()
    assert trainer.reader.words()[ring.WORD_HEARTBEAT] == stage.clock.monotonic


def test_disk_is_asked_once_a_second(stage, monkeypatch):
    """fdatasync is called once a second, not with every tick."""
    asked = []
    monkeypatch.setattr("stepscope.store.tail._sync", asked.append)
    trainer = stage.trainer()
    for _ in range(50):
        trainer.run.log({"a": 1.0})
        stage.tick()
    assert 5 <= len(asked) <= 6


@pytest.mark.promise("S1-057", "S1-061")
def test_flush_interval_decides_how_often_the_disk_is_asked(tmp_path, monkeypatch):
    """With `flush_interval: 10.0` five seconds of rows ask the disk once, and twenty ask it three times at most."""
    asked = []
    monkeypatch.setattr("stepscope.store.tail._sync", asked.append)
    settings = load(settings={"performance_tuning": {"flush_interval": 10.0}})
    stage = Stage(
        tmp_path,
        monkeypatch,
        sync=WatcherPace.of({"watcher.sync_interval": settings.get("watcher.sync_interval")}).sync,
    )
    trainer = stage.trainer()
    counts = []
    for _ in range(4):
        for _ in range(50):
            trainer.run.log({"a": 1.0})
            stage.tick()
        counts.append(len(asked))
    assert counts[0] <= 1
    assert 2 <= counts[-1] <= 3


@pytest.mark.promise("S1-058", "S1-061")
def test_without_batches_the_watcher_rests_for_a_shorter_time(tmp_path, monkeypatch):
    """`batch_metrics_collection: false` has rows fetched at least five times as often."""
    rests = []
    for number, batched in enumerate((True, False)):
        settings = load(settings={"performance_tuning": {"batch_metrics_collection": batched}})
        (tmp_path / str(number)).mkdir()
        stage = Stage(tmp_path / str(number), monkeypatch, drain=settings.get("watcher.drain_interval"))
        trainer = stage.trainer()
        trainer.run.log({"a": 1.0})
        stage.tick()
        rests.append(stage.watcher.rest())
    assert rests[1] * 5 <= rests[0]


def test_sealing_by_bytes(tmp_path, monkeypatch):
    """A tail that has grown to seal_bytes is closed and sealed; rows go on in the next."""
    stage = Stage(tmp_path, monkeypatch, seal_bytes=4000)
    trainer = stage.trainer()
    for _ in range(10):
        for _ in range(30):
            trainer.run.log({"a": 1.0})
        stage.tick()
    assert stage.sealing.asked == [(0, 0), (0, 1)]
    assert [span.last for span in stage.folder.all_tails()] == [0, 1, 2]
    assert len(stage.values()) == 300


def test_sealing_by_age(tmp_path, monkeypatch):
    """A tail that is seal_interval old is sealed, counted from its own first row."""
    stage = Stage(tmp_path, monkeypatch, seal_interval=10)
    trainer = stage.trainer()
    for _ in range(24):
        trainer.run.log({"a": 1.0})
        stage.tick(seconds=1)
    assert stage.sealing.asked == [(0, 0), (0, 1)]


def test_last_tail_is_sealed_at_the_end(stage):
    """When the last rank of a node has ended its tail is sealed; not before."""
    first, second = stage.trainer(), stage.trainer(rank=1)
    first.run.log({"a": 1.0})
    stage.tick()
    stage.end(first)
    stage.tick()
    assert stage.sealing.asked == []
    stage.end(second)
    stage.tick()
    assert stage.sealing.asked == [(0, 0)]


def test_second_attempt_in_one_watcher(stage):
    """A further attempt of the run gets files and a node of its own, and its tail its own age."""
    first = stage.trainer()
    first.run.log({"a": 1.0})
    stage.tick(seconds=200)
    stage.end(first, ring.STATE_FAILED)
    second = stage.trainer(attempt=1)
    second.run.log({"a": 2.0})
    stage.tick(seconds=1)
    stage.tick(seconds=150)
    assert stage.sealing.asked == [(0, 0)]
    stage.end(second)
    assert not stage.tick()
    past = stage.past()
    assert (past.attempts, past.state) == ([0, 1], "finished")
    assert (stage.values(attempt=0), stage.values(attempt=1)) == ([1.0], [2.0])
    assert stage.node(0).ranks[0].state == "failed"


def test_watcher_that_takes_over(stage):
    """A watcher started after another was killed goes on with the ring, the counter and the rank's history."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    stage.tick(times=30)
    before = stage.node()
    stage.watcher._ranks[trainer.path].stream.close()
    stage.watcher = stage.new_watcher()
    trainer.run.log({"a": 2.0})
    stage.tick()
    after = stage.node()
    assert after.counter == before.counter + 1
    assert after.ranks[0].started == before.ranks[0].started
    assert stage.values() == [1.0, 2.0]


METERS = {
    *("rows_total", "bytes_total", "drops_total", "refused_total", "drain_lag_seconds", "ring_fill_ratio"),
    *("log_seconds", "tail_bytes", "watcher_cpu_ratio"),
}


def test_metering(stage):
    """What watching costs is recorded every two seconds as ordinary metrics, under names with a unit."""
    trainer = stage.trainer()
    for _ in range(100):
        trainer.run.log({"a": 1.0})
    trainer.run.log({"a": None})
    stage.tick(times=45)
    names = [name for name in stage.past().names() if name.startswith("stepscope/")]
    assert {f"stepscope/{name}" for name in METERS} <= set(names)
    assert [name for name in names if metric_of(name) is None] == []
    assert stage.values("stepscope/rows_total") == [100.0, 100.0, 100.0]
    assert stage.values("stepscope/drops_total") == [0.0, 0.0, 0.0]
    assert stage.values("stepscope/refused_total") == [1.0, 1.0, 1.0]
    assert stage.values("stepscope/bytes_total") == [4000.0, 4000.0, 4000.0]
    assert 0 < stage.values("stepscope/log_seconds")[0] < 60


def test_metering_of_several_ranks(stage):
    """Each rank has its own figures: those of one are not added to another's."""
    first, second = stage.trainer(), stage.trainer(rank=3)
    first.run.log({"a": 1.0})
    for _ in range(5):
        second.run.log({"a": 1.0})
    stage.tick()
    assert stage.values("stepscope/bytes_total") == [40.0]
    assert stage.values("stepscope/bytes_total/rank3") == [200.0]
    assert unit_of("stepscope/bytes_total/rank3") in ("bytes", "")


def test_lag(stage):
    """drain_lag_seconds is the age of the oldest row when it was drained, since the last figure."""
    trainer = stage.trainer()
    trainer.run._write(*row_at(trainer, stage.clock.monotonic))
    stage.tick(seconds=0.5)
    stage.tick(seconds=2)
    assert stage.values("stepscope/drain_lag_seconds") == pytest.approx([0.5, 0.0])


def row_at(trainer, moment):
    return trainer.declarations.layout(("a",), "d"), moment, None, (1.0,)


def test_jump_of_the_wall_clock(stage):
    """A wall clock that is set becomes an event; rows keep their order and times before the jump."""
    trainer = stage.trainer()
    trainer.run._write(*row_at(trainer, stage.clock.monotonic))
    stage.tick(times=12)
    stage.clock.wall += 3600 * 10**9
    stage.tick(times=12)
    [event] = stage.past().events("clock_jump")
    assert event["seconds"] == pytest.approx(3600)
    assert event["rank"] == -1


def test_pace():
    """The pace is what the configuration says, and otherwise the default."""
    assert WatcherPace.of({}) == WatcherPace()
    settings = {"watcher.drain_interval": 0.01, "store.seal_bytes": 99, "unknown": 1}
    assert WatcherPace.of(settings) == WatcherPace(drain=0.01, seal_bytes=99)


def test_ring_that_a_salvager_has(stage):
    """A ring that somebody else drains at the moment is left to him, and found again later."""
    trainer = stage.trainer()
    trainer.run.log({"a": 1.0})
    with held(trainer.path, ring.LOCK_READER):
        assert not stage.tick()
    assert stage.tick()
    assert stage.values() == [1.0]


def test_ring_of_a_run_that_was_here_before(stage):
    """A ring of a run that was deleted before its watcher came is let go, and told so."""
    trainer = stage.trainer()
    stage.folder.run_file.write_text('{"format": 1, "id": "other", "created": 5}')
    assert not stage.tick()
    assert stage.status(trainer) == status.GONE


def test_memory_of_the_watcher(tmp_path):
    """The watcher's own memory is told where the system tells it."""
    assert resident_bytes() > 1 << 20
    assert resident_bytes(str(tmp_path / "none")) is None
