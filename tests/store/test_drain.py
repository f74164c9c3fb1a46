from __future__ import annotations

import errno
import json
import os
import zlib

import pytest

from stepscope.core import ring
from stepscope.core.records import RECORD
from stepscope.store import drain as drain_module
from stepscope.store.drain import OwnRows, RingBusyError, Stream
from stepscope.store.layout import Writer
from tests.store.faults import ERRNOS, Disk
from tests.store.locks import held
from tests.store.recorded import PAIR, OwnStream, Recorded, decoded_values, frames_of, values_of


@pytest.fixture
def recorded(tmp_path):
    return Recorded(tmp_path)


def rows_read(recorded):
    """Return (step, value) of the metric "a", read as anybody would."""
    found = recorded.past().series("a")
    return list(zip(found.step.tolist(), found.value.tolist(), strict=True))


def test_rows_reach_the_tail(recorded):
    """What was logged is on disk after a drain, and the ring is given up as far as that."""
    recorded.run.log({"a": 1.0})
    recorded.run.log({"a": 2.0})
    assert not recorded.stream.empty()
    assert recorded.drain() == 2
    assert recorded.stream.empty()
    assert rows_read(recorded) == [(0, 1.0), (1, 2.0)]


def test_nothing_new_writes_nothing(recorded):
    """A drain without a new row makes no file."""
    assert recorded.drain() == 0
    assert recorded.folder.all_tails() == []


def test_new_columns_without_rows(recorded):
    """Columns declared before their first row, in an open tail, are written there at once."""
    recorded.run.log({"a": 1.0})
    recorded.drain()
    recorded.rig.declarations.layout(("later",), "d")
    recorded.drain()
    recorded.run.log({"later": 2.0})
    recorded.drain()
    assert recorded.past().names() == ["a", "later"]


def test_events_reach_their_file(recorded):
    """Events are lines of JSON with the wall time of their moment, rank, attempt and sequence."""
    recorded.run.log({"note": "hello"})
    recorded.drain()
    [line] = recorded.folder.events_file(recorded.writer).read_text().splitlines()
    event = json.loads(line)
    moment = recorded.rig.records()[0][2]
    assert event.pop("crc") == f"{zlib.crc32(line.encode()[20:]):08x}"
    assert event == {
        "time": (PAIR[0] + moment) // 1000,
        "rank": 0,
        "attempt": 0,
        "step": 0,
        "sequence": 0,
        "kind": "log",
        "values": {"note": "hello"},
    }


def test_fields_with_our_names(recorded):
    """A user's field that is called like one of ours gets an underscore, and hides nothing."""
    recorded.run.event("x", time="noon", rank="first", attempt=None, sequence=[1])
    recorded.drain()
    [event] = recorded.past().events()
    assert (event["rank"], event["attempt"], event["sequence"]) == (0, 0, 0)
    assert (event["time_"], event["rank_"], event["attempt_"], event["sequence_"]) == ("noon", "first", None, [1])


def test_event_that_cannot_be_read(recorded):
    """An event whose text is damaged is kept as one that cannot be read, and holds up nothing."""
    recorded.run.event("x")
    recorded.run.log({"a": 1.0})
    os.pwrite(recorded.rig.descriptor, b"\xff", ring.HEADER_BYTES + RECORD.size)
    recorded.drain()
    assert [event["kind"] for event in recorded.past().events()] == ["unreadable"]
    assert rows_read(recorded) == [(0, 1.0)]


def test_half_a_line_of_a_killed_writer(recorded):
    """Half a line that a killed watcher left in the events file costs nothing but itself."""
    path = recorded.folder.events_file(recorded.writer)
    path.write_text('{"time": 1, "kind": "ha')
    recorded.run.log({"note": "x"})
    recorded.drain()
    assert [event["kind"] for event in recorded.past().events()] == ["log"]


def test_each_file_can_be_read_alone(recorded):
    """After a rotation the new tail says again whose rows these are and what their columns mean."""
    recorded.run.log({"a": 1.0})
    recorded.drain()
    assert recorded.drain_.rotate() == 0
    recorded.run.log({"a": 2.0})
    recorded.drain()
    assert [decoded_values(span.path.read_bytes()).keys() for span in recorded.folder.all_tails()] == [
        {(0, 0, 0, "a")},
        {(0, 0, 1, "a")},
    ]
    assert recorded.drain_.rotate() == 1
    assert recorded.drain_.rotate() is None


def test_numbers_of_files_are_never_used_twice(recorded):
    """A writer that starts anew goes on behind the numbers that were used before it."""
    recorded.run.log({"a": 1.0})
    recorded.drain()
    again = Recorded(recorded.rig.path.parent / "again", folder=recorded.folder)
    again.run.log({"a": 5.0})
    again.drain()
    assert [span.last for span in recorded.folder.all_tails()] == [0, 1]


def test_declarations_stand_twice(recorded):
    """Who writes, and what columns mean, stands in two frames, so that no damaged one costs the rows."""
    recorded.run.log({"a": 1.0})
    recorded.drain()
    kinds = [frame.kind for frame in frames_of(recorded.tail_bytes())]
    assert kinds == [4, 1, 1, 2, 2, 3]


def test_lost_rows_are_counted_exactly(tmp_path):
    """Rows that the writer lapped are counted, to the row, and the others are all there."""
    recorded = Recorded(tmp_path, ring_bytes=ring.HEADER_BYTES + 64 * 256)
    for number in range(1000):
        recorded.run.log({"a": float(number)})
    recorded.drain()
    steps = [step for step, _ in rows_read(recorded)]
    assert steps == list(range(steps[0], 1000))
    assert recorded.stream.lost == steps[0] > 0
    assert recorded.rig.reader.words()[ring.WORD_LOST] == steps[0]


def test_next_consumer_goes_on(recorded):
    """A consumer that takes over starts behind what was committed, and what was not is drained again, once."""
    recorded.run.log({"a": 1.0})
    recorded.drain()
    recorded.run.log({"a": 2.0})
    recorded.drain_.once(recorded.stream, PAIR)
    recorded.stream.reader.set_progress(40, 1, 0)  # as if killed after the write and before the commit
    recorded.stream.close()
    recorded.stream = OwnStream(recorded.rig.path, 1)
    recorded.run.log({"a": 3.0})
    recorded.drain()
    assert rows_read(recorded) == [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert recorded.stream.lost == 0


def test_one_consumer(recorded):
    """A ring that another process consumes is busy; when that ends it is free."""
    recorded.stream.close()
    with held(recorded.rig.path, ring.LOCK_READER), pytest.raises(RingBusyError):
        Stream(recorded.rig.path, 0)
    Stream(recorded.rig.path, 0).close()


def test_writer_is_alive_while_it_holds_its_lock(recorded):
    """Whether a trainer lives is told by its lock, whatever its process id."""
    assert not recorded.stream.writer_alive()  # a lock of this very process does not count
    with held(recorded.rig.path, ring.LOCK_WRITER):
        assert recorded.stream.writer_alive()
    assert not recorded.stream.writer_alive()


def test_ring_without_its_columns(recorded, open_files):
    """A ring whose schema file is missing is an error, and no descriptor stays open."""
    recorded.stream.close()
    recorded.rig.schema.unlink()
    before = open_files()
    with pytest.raises(FileNotFoundError):
        Stream(recorded.rig.path, 0)
    assert open_files() <= before


def test_removing_a_ring(recorded):
    """A ring goes with its schema file; one that is gone already is no problem."""
    recorded.stream.remove()
    recorded.stream.remove()
    assert list(recorded.rig.path.parent.glob("*.ring")) == []


def test_own_rows(recorded):
    """The watcher's own rows have its rank, no step, and columns declared in every file that holds some."""
    own = recorded.drain_.own
    for _ in range(2):
        own.add({"stepscope/x": 1.5}, 1000)
        recorded.drain_.write_own(PAIR)
        own.add({"stepscope/x": 2.5, "stepscope/y": 3.5}, 2000)
        recorded.drain_.write_own(PAIR)
        recorded.drain_.rotate()
    found = recorded.past().series("stepscope/x")
    assert (found.rank.tolist(), found.value.tolist()) == ([-1] * 4, [1.5, 2.5, 1.5, 2.5])
    assert set(found.step.tolist()) == {-(2**63)}


def test_own_rows_are_bounded():
    """Rows of the watcher that no disk takes do not fill its memory."""
    own = OwnRows(-1, 0)
    for _ in range(drain_module.MOST_OWN_ROWS + 10):
        own.add({"x": 1.0}, 0)
    assert len(own.queued()[1]) == drain_module.MOST_OWN_ROWS * 40


def scenario(recorded, monkeypatch, **fault):
    """Log, drain and rotate on a failing disk, trying again until it works; return the disk."""
    disk = Disk(monkeypatch, **fault)

    def patiently(work):
        disk.watching = True
        for _ in range(100):
            try:
                return work()
            except OSError:
                continue
        raise AssertionError("the disk never came back")

    for number in range(4):
        disk.watching = False  # the recorder's own file is another story
        recorded.run.log({"a": float(number), f"n{number}": 1.0})
        recorded.run.log({"note": f"event {number}"})
        patiently(recorded.drain)
        recorded.drain_.own.add({"stepscope/own": float(number)}, 10 + number)
        patiently(lambda: recorded.drain_.write_own(PAIR))
        patiently(recorded.drain_.sync)
        if number == 1:
            patiently(recorded.drain_.rotate)
    monkeypatch.undo()
    return disk


def check(recorded):
    """Everything is there once: rows, events, the watcher's own rows; no file is damaged."""
    past = recorded.past()
    assert past.series("a").value.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert past.names() == ["a", "n0", "n1", "n2", "n3", "stepscope/own"]
    assert past.series("stepscope/own").value.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert [event["values"]["note"] for event in past.events()] == [f"event {number}" for number in range(4)]
    # Half a line that could be neither completed nor cut off is told, though nothing of it is missing.
    assert [problem for problem in past.problems() if "1 damaged lines" not in problem] == []
    assert recorded.stream.lost == 0


@pytest.mark.parametrize(("length", "shift"), [(1, 0), (1, 3), (2, 1), (5, 2)])
def test_fault_at_every_call(tmp_path, length, shift):
    """Whichever call fails, with whichever error, nothing is lost and nothing is there twice."""
    first, calls = 1, 10**6
    while first <= calls:
        recorded = Recorded(tmp_path / f"{first}", ring_bytes=1 << 18)
        number = ERRNOS[(first + shift) % len(ERRNOS)]
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = scenario(recorded, monkeypatch, first=first, length=length, number=number, most=300)
        check(recorded)
        assert disk.failed > 0 or first > disk.calls - length
        first, calls = first + 1, disk.calls
        recorded.close()


def test_full_disk_that_is_emptied(recorded, monkeypatch):
    """On a disk that stays full rows wait in the ring, and are all written when there is space again."""
    for number in range(50):
        recorded.run.log({"a": float(number)})
        with monkeypatch.context() as patched:
            Disk(patched, first=1, length=100)
            with pytest.raises(OSError, match="space"):
                recorded.drain()
    recorded.drain()
    assert [value for _, value in rows_read(recorded)] == [float(number) for number in range(50)]


def test_failed_sync_goes_on_in_a_new_file(recorded, monkeypatch):
    """After a failed sync the old file is left as it is, and a new one is begun."""
    recorded.run.log({"a": 1.0})
    recorded.drain()
    with monkeypatch.context() as patched:
        Disk(patched, first=1, number=errno.EIO)
        with pytest.raises(OSError, match="Input"):
            recorded.drain_.sync()
    recorded.drain_.sync()
    recorded.run.log({"a": 2.0})
    recorded.drain()
    assert [span.last for span in recorded.folder.all_tails()] == [0, 1]
    assert rows_read(recorded) == [(0, 1.0), (1, 2.0)]


def test_several_ranks_in_one_tail(tmp_path):
    """The rows of several ranks share a tail and are told apart."""
    first = Recorded(tmp_path)
    second = Recorded(tmp_path / "second", number=1, folder=first.folder, rank=1)
    for number in range(3):
        first.run.log({"a": float(number)})
        second.run.log({"a": 10.0 + number})
        first.drain()
        first.drain_.once(second.stream, PAIR)
    series = first.past().series("a")
    assert series.rank.tolist() == [0, 0, 0, 1, 1, 1]
    assert series.value.tolist() == [0.0, 1.0, 2.0, 10.0, 11.0, 12.0]
    assert first.past().series("a", rank=1).value.tolist() == [10.0, 11.0, 12.0]


def test_checked_rings_drain_alike(tmp_path):
    """The rows of a machine whose records carry checksums are read the same, long ones and events too."""
    recorded = Recorded(tmp_path, machine="aarch64", writer=Writer("arm", 0))
    for number in range(1100):
        recorded.run.log({f"x{number}": float(number)})
    recorded.run.log({"a": 1.0, "note": "y"})
    with recorded.run.step(samples=3):
        pass
    recorded.drain()
    assert recorded.past().series("x1050").value.tolist() == [1050.0]
    assert recorded.past().series("samples").value.tolist() == [3.0]
    assert [event["values"] for event in recorded.past().events()] == [{"note": "y"}]
    assert values_of(recorded.past().points(["a"]))[0, 0, 1100, "a"][0] == 1100
