"""A ring that fills up: the watcher is woken, rows spill, a call waits a moment, and what is lost is told."""

from __future__ import annotations

import _thread
import contextlib
import os
import threading

import pytest

from stepscope.core import ring, status
from stepscope.core.records import heads
from stepscope.recorder import native, overflow
from tests.recorder.rig import RING_BYTES, Rig
from tests.recorder.test_writers import in_child

SEGMENT = 1024
ROWS = 25
"""Rows of one value in a segment."""


class Clock:
    """Time that passes when somebody sleeps; `during` is called then."""

    def __init__(self):
        self.now, self.slept, self.during = 100.0, 0.0, lambda: None

    def sleep(self, seconds):
        self.now += seconds
        self.slept += seconds
        self.during()

    def monotonic(self):
        return self.now

    def monotonic_ns(self):
        return round(self.now * 1e9)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that stands still: no test waits, and nothing of it is said in another one."""
    clock = Clock()
    monkeypatch.setattr(overflow, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """Threads that are asked for, not started."""
    asked = []
    monkeypatch.setattr(overflow._thread, "start_new_thread", lambda work, arguments: asked.append((work, arguments)))
    return asked


@pytest.fixture
def spilling(tmp_path):
    return lambda segments=1000, **more: Rig(tmp_path, spill=segments * SEGMENT, **more)


def fill(rig, rows, first=0):
    for number in range(first, first + rows):
        rig.run.log({"a": float(number)})


def values(rig):
    return [row["a"] for _, row in rig.rows()]


def drain(rig):
    """Take everything, as a watcher does; return the rows."""
    found, cursor = [], rig.reader.words()[ring.WORD_CURSOR]
    while True:
        pieces, after = rig.reader.read(cursor)
        found += [sequence for piece in pieces for _, _, _, sequence, _, _ in heads(piece.data)]
        if after == cursor:
            break
        cursor = after
    words = rig.reader.words()
    rig.reader.set_word(ring.WORD_HEARTBEAT, words[ring.WORD_HEARTBEAT] or 1)
    rig.reader.set_progress(cursor, found[-1] + 1 if found else words[ring.WORD_EXPECTED], words[ring.WORD_LOST])
    return found


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_burst_spills(spilling, machine):
    """Rows that the ring has no room for, and that nobody has drained, are all there, in order."""
    rig = spilling(machine=machine)
    fill(rig, 20_000)
    assert values(rig) == [float(number) for number in range(20_000)]
    assert rig.run.overflow.lost() == 0
    assert rig.spill.stat().st_mode & 0o777 == 0o600


def test_both_hot_paths_spill_the_same(tmp_path, monkeypatch):
    """The twin in C leaves a full segment to Python: ring and spill file are the same to the byte."""
    module = native.available()
    if module is None:
        pytest.skip("needs the hot path in C, which was not built here")
    files = []
    try:
        for chosen in (None, module):
            native.use(chosen)
            monkeypatch.setattr("stepscope.recorder.hotpath.monotonic_ns", lambda: 1000)
            module.set_clock(lambda: 1000)
            rig = Rig(tmp_path, spill=100 * SEGMENT)
            fill(rig, 5000)
            files.append((rig.path.read_bytes()[4096:], rig.spill.read_bytes()))
    finally:
        module.set_clock(None)
    assert files[0] == files[1]


def test_spilled_rows_while_they_are_drained(spilling):
    """A reader gets each row once, whenever it looks and however little it takes."""
    rig = spilling(segments=5000)
    found, cursor = [], 0
    for turn in range(60):
        fill(rig, 400 if turn % 3 else 3000, first=0)
        pieces, cursor = rig.reader.read(cursor, limit=5000)
        found += [sequence for piece in pieces for _, _, _, sequence, _, _ in heads(piece.data)]
        rig.reader.set_progress(cursor, found[-1] + 1, 0)
    while True:
        pieces, after = rig.reader.read(cursor)
        if after == cursor:
            break
        found += [sequence for piece in pieces for _, _, _, sequence, _, _ in heads(piece.data)]
        cursor = after
    assert found == list(range(rig.run._sequence))


def test_spilled_while_the_ring_is_read(spilling, monkeypatch):
    """What the writer moves into the spill file while the ring is being read is read from there, in order."""
    rig = spilling()
    fill(rig, 60 * ROWS)
    true_read, calls = rig.reader._read_ring, []

    def read_ring(*arguments):
        found = true_read(*arguments)
        if not calls:
            calls.append(1)
            fill(rig, 100 * ROWS, first=60 * ROWS)
        return found

    monkeypatch.setattr(rig.reader, "_read_ring", read_ring)
    assert values(rig) == [float(number) for number in range(160 * ROWS)]


def test_a_full_spill_loses_the_oldest(spilling, threads, capsys):
    """With nobody to drain it a full spill gives up its oldest rows, which are counted to the row and told."""
    rig = spilling(segments=100)
    fill(rig, 10_000)
    found = values(rig)
    assert found == [float(number) for number in range(int(found[0]), 10_000)]
    assert rig.run.overflow.lost() == found[0] > 0
    assert len(found) >= (100 + 63) * ROWS
    assert threads == [(rig.run.overflow._tell_soon, ())]
    rig.run._tell_losses()
    assert capsys.readouterr().err.startswith(
        f"stepscope: cannot keep every row: {found[0]:.0f} lost, the watcher was not running; "
    )


def test_losses_are_told_while_they_go_on(spilling, threads, clock, capsys):
    """Lost rows are told two seconds after the first, again while there are more, and then no longer."""
    rig = spilling(segments=0)
    fill(rig, 10_000)
    told, left = [], [2000, 0, 0]
    clock.during = lambda: (told.append(clock.now), fill(rig, left.pop(0) if left else 0))
    [(work, arguments)] = threads
    began = clock.now
    clock.slept = 0.0
    work(*arguments)
    said = capsys.readouterr().err.splitlines()
    assert told[0] - began == overflow.TELL_SECONDS
    assert [line.split(": ")[2].split(" ")[2] for line in said] == [str(rig.run.overflow.lost())]


def test_a_drained_spill_is_deleted(spilling, threads):
    """When what was spilled is drained the file goes, its memory with the reader's; the next burst begins another."""
    rig = spilling()
    for burst in range(3):
        fill(rig, 5000)
        assert rig.spill.exists()
        rig.run.give_back()
        assert rig.spill.exists()
        assert len(drain(rig)) == 5000
        rig.run.give_back()
        assert not rig.spill.exists()
        drain(rig)
        assert rig.reader.spill._descriptor == -1
        assert len(threads) == burst + 1
        os.close(threads[-1][1][0])
    fill(rig, 100)
    assert not rig.spill.exists()


def test_a_quiet_ring_gives_its_spill_back(spilling, threads):
    """A training that goes on after a burst deletes the drained file at its next segment."""
    rig = spilling()
    fill(rig, 5000)
    drain(rig)
    fill(rig, 3 * ROWS)
    assert not rig.spill.exists()
    assert len(threads) == 1


def test_no_space_to_spill(spilling, threads, monkeypatch):
    """A spill file that cannot be made or written costs rows, counted; when all is drained it is tried again."""
    rig = spilling()
    rig.spill.mkdir()
    fill(rig, 5000)
    assert rig.run.overflow.lost() == values(rig)[0] > 0
    rig.spill.rmdir()
    drain(rig)
    fill(rig, 5000)
    assert len(drain(rig)) == 5000


def test_half_a_segment_is_none(spilling, threads, monkeypatch):
    """A disk that fills up in the middle of a segment keeps the ones before; those after it are lost and counted."""
    rig = spilling()
    written, true_write = [], os.pwrite

    def pwrite(descriptor, data, offset):
        written.append(offset)
        return true_write(descriptor, data if len(written) < 20 else data[:100], offset)

    monkeypatch.setattr(overflow.os, "pwrite", pwrite)
    fill(rig, 10_000)
    sequences = [sequence for _, sequence, *_ in rig.records()]
    assert sequences[: 19 * ROWS] == list(range(19 * ROWS))
    assert sequences[19 * ROWS :] == list(range(sequences[19 * ROWS], 10_000))
    assert len(written) == 20


def test_a_spill_file_that_was_taken_away(spilling, threads):
    """Rows of a deleted or cut spill file are lost; those in the ring are not."""
    for harm in (lambda path: path.unlink(), lambda path: os.truncate(path, 3000)):
        rig = spilling()
        fill(rig, 5000)
        harm(rig.spill)
        found = values(rig)
        assert found[-63 * ROWS :] == [float(number) for number in range(5000 - 63 * ROWS, 5000)]


def test_waiting_for_a_watcher_that_drains(spilling, clock, threads):
    """Without a spill a call waits for a live watcher, and no row is lost."""
    rig = spilling(segments=0)
    rig.reader.set_word(ring.WORD_HEARTBEAT, clock.monotonic_ns())
    taken = []

    def during():
        rig.reader.set_word(ring.WORD_HEARTBEAT, clock.monotonic_ns())
        if round(clock.slept / overflow.NAP) % 10 == 0:
            taken.extend(drain(rig))

    clock.during = during
    fill(rig, 20_000)
    assert taken + drain(rig) == list(range(20_000))
    assert 0 < clock.slept < 20_000 / (60 * ROWS) * overflow.WAIT_SECONDS
    assert threads == []


@pytest.mark.parametrize(("age", "most"), [(0.0, 0.05), (5.0, 0.0)])
def test_no_waiting_for_a_dead_or_stuck_watcher(spilling, clock, threads, age, most):
    """One that does not drain is waited for once, 50 ms at most; one without a sign of life not at all."""
    rig = spilling(segments=0)
    rig.reader.set_word(ring.WORD_HEARTBEAT, clock.monotonic_ns() - round(age * 1e9))
    fill(rig, 20_000)
    assert clock.slept <= most
    assert rig.run.overflow.lost() == values(rig)[0] > 0


def test_a_watcher_that_has_not_come_yet(spilling, clock, threads):
    """A watcher that was just started is waited for in pieces of 50 ms, two seconds in all and no more."""
    rig = spilling(segments=0)
    fill(rig, 20_000)
    assert overflow.START_SECONDS - 0.1 < clock.slept < overflow.START_SECONDS + 0.1
    assert rig.run.overflow._drained(10**9) is False
    assert clock.slept < overflow.START_SECONDS + 0.1


def test_the_end_of_a_run_waits_for_nobody(spilling, clock, threads):
    """A thread that waits for room when the run ends goes on at once."""
    rig = spilling(segments=0)
    rig.run.overflow.is_closing = True
    fill(rig, 20_000)
    assert clock.slept == 0


def test_the_watcher_is_woken_once_for_each_time_it_drains(spilling):
    """A ring that fills up writes to the watcher's FIFO, not for every segment; a quiet one never does."""
    rig = spilling()
    path = rig.path.with_suffix(".wake")
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        fill(rig, 15 * ROWS)
        with pytest.raises(BlockingIOError):
            os.read(descriptor, 100)
        fill(rig, 30 * ROWS)
        assert os.read(descriptor, 100) == b"\0"
        drain(rig)
        fill(rig, 300 * ROWS)
        assert os.read(descriptor, 100) == b"\0"
    finally:
        os.close(descriptor)


def test_a_full_fifo_holds_up_nobody(spilling):
    """A watcher that never reads its FIFO is no reason to wait."""
    rig = spilling()
    path = rig.path.with_suffix(".wake")
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(descriptor, bytes(4096))
        fill(rig, 5000)
    finally:
        os.close(descriptor)
    assert len(values(rig)) == 5000


def test_causes(spilling, clock, threads):
    """What is told of lost rows says why: the disk, the watcher, or the speed."""
    rig = spilling(segments=0)
    rig.reader.set_word(ring.WORD_HEARTBEAT, clock.monotonic_ns())
    assert "came faster" in rig.run.overflow._find_cause()
    rig.reader.set_word(ring.WORD_STATUS, status.DISK_FULL)
    assert "could not be written" in rig.run.overflow._find_cause()


def test_threads_that_burst_together(spilling):
    """Several threads that log at once, with a spill between them, lose nothing."""
    rig = Rig(spilling().path.parent, ring_bytes=RING_BYTES, spill=16 << 20)
    rig.run.log({"a": 0.0, "thread": 0.0})

    def work(number):
        for at in range(4000):
            rig.run.log({"a": float(at), "thread": float(number)})

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert rig.refused == 0
    assert len(rig.rows()) == 16_001
    assert [sequence for _, sequence, *_ in rig.records()] == list(range(16_001))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_lets_go_of_the_spill(spilling):
    """A child that was forked during a burst holds none of its memory and writes none of its rows."""
    rig = spilling()
    fill(rig, 5000)

    def child():
        before = rig.run.overflow
        rig.run.disarm()
        assert before._descriptor == -1
        fill(rig, 5000)

    size = rig.spill.stat().st_size
    assert in_child(child) == 0
    assert rig.spill.stat().st_size == size
    assert len(values(rig)) == 5000


def test_signal_in_the_middle_of_a_turn(spilling, monkeypatch):
    """An interrupt while a segment is being spilled leaves the ring whole: the next row goes on."""
    rig = spilling()
    true_write, calls = os.pwrite, []

    def pwrite(*arguments):
        calls.append(1)
        if len(calls) in {3, 5}:
            raise KeyboardInterrupt
        return true_write(*arguments)

    monkeypatch.setattr(overflow.os, "pwrite", pwrite)
    rows = 0
    while rows < 5000:
        try:
            rig.run.log({"a": float(rows)})
        except KeyboardInterrupt:
            continue
        rows += 1
    assert values(rig) == [float(number) for number in range(5000)]


def test_rows_of_steps_and_phases_spill_too(spilling):
    """A burst of steps with phases and data is kept like one of log."""
    rig = spilling()
    for _ in rig.run.data(range(3000)):
        with rig.run.step(samples=2), rig.run.phase("forward"):
            rig.run.log({"a": 1.0})
    rows = [row for _, row in rig.rows()]
    assert sum("a" in row for row in rows) == sum("step_seconds" in row for row in rows) == 3000


def test_ring_of_the_version_before(spilling):
    """A ring of version 1, which has no spill, is read as ever."""
    rig = spilling(segments=0)
    rig.run.overflow = None
    fill(rig, 100)
    rig.reader.set_word(ring.WORD_VERSION, 1)
    descriptor = os.open(rig.path, os.O_RDWR)
    pieces, _ = ring.RingReader(descriptor).read(0)
    os.close(descriptor)
    assert sum(len(heads(piece.data)) for piece in pieces) == 100


def test_threads_that_cannot_be_started(spilling, monkeypatch):
    """Where no thread can be started nothing is raised: memory is freed at once, losses are told at the end."""

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    rig = spilling(segments=10)
    fill(rig, 5000)
    drain(rig)
    rig.run.give_back()
    assert not rig.spill.exists()


def test_a_spill_that_cannot_be_written_loses_rows(spilling, monkeypatch):
    """Rows that no place accepts, for want of space or of a folder, are counted as lost, and the others are kept."""

    def refuse(*_):
        raise OSError(28, "no space")

    rig = spilling()
    with monkeypatch.context() as patched:
        patched.setattr(overflow.os, "pwrite", refuse)
        fill(rig, 5000)
    found = values(rig)
    assert rig.run.overflow.lost() == found[0] > 0
    homeless = spilling()
    homeless.run.overflow._places = refuse
    fill(homeless, 5000)
    assert homeless.run.overflow.lost() == values(homeless)[0] > 0


def test_a_run_that_could_not_be_written_says_so(spilling, capsys):
    """If the watcher reports a failure, the message names the disk as the cause."""
    rig = spilling(segments=0)
    rig.reader.set_word(ring.WORD_STATUS, min(status.FAILURES))
    fill(rig, 5000)
    rig.run._tell_losses()
    assert "the run could not be written meanwhile; free its disk" in capsys.readouterr().err


def test_nothing_is_reported_after_the_end_of_the_run(spilling, threads, monkeypatch, capsys):
    """The thread that reports losses ends with the run, which has reported them itself."""
    rig = spilling(segments=0)
    fill(rig, 5000)
    [(work, arguments)] = threads

    def ended():
        raise ValueError("operation forbidden on released memoryview object")

    monkeypatch.setattr(rig.run.overflow, "lost", ended)
    work(*arguments)
    assert capsys.readouterr().err == ""


def test_a_drained_spill_is_left_to_the_thread_that_writes(spilling):
    """While a thread holds the token, nobody else deletes the spill file."""
    rig = spilling()
    fill(rig, 5000)
    drain(rig)
    token = rig.run._tokens.pop()
    rig.run.give_back()
    assert rig.spill.exists()
    rig.run._tokens.append(token)
    rig.run.give_back()
    assert not rig.spill.exists()
