"""Several who want to write at once: threads, re-entry, forks, a run that has ended."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading

import pytest

from stepscope.core import ring
from stepscope.recorder import declarations, native, position
from stepscope.recorder.mapping import Mapping
from stepscope.session.run import Run
from tests.recorder.rig import Rig


def inside_write(rig, work):
    """Have `work` called in the middle of the next write of {"outer": …}, as a signal handler or __del__ would."""
    rig.run.log({"outer": 0.0})
    layout = rig.intake.layouts["outer",]

    def interrupted(*values):
        rig.intake.layouts["outer",] = layout
        work()
        layout[0](*values)

    rig.intake.layouts["outer",] = (interrupted, *layout[1:4], b"")  # no kinds: the twin in C leaves it to Python
    native.use(native.available() if native.is_used() else None)  # which remembers the layouts of the last calls


def test_row_inside_a_write(rig):
    """A row logged inside a write of the same thread waits for its end, and follows it."""
    rig.run.log({"inner": 0.0})
    inside_write(rig, lambda: rig.run.log({"inner": 2.0}))
    rig.run.log({"outer": 1.0})
    assert [row for _, row in rig.rows()][2:] == [{"outer": 1.0}, {"inner": 2.0}]
    assert [sequence for _, sequence, *_ in rig.records()] == [0, 1, 2, 3]


def test_new_names_inside_a_write(rig):
    """A row with new names, logged inside a write, is declared and follows it too."""
    inside_write(rig, lambda: rig.run.log({"never": 1.0, "seen": 2.0}))
    rig.run.log({"outer": 1.0})
    assert rig.rows()[-1] == (2, {"never": 1.0, "seen": 2.0})


def test_side_queue_is_bounded(rig):
    """More rows inside one write than the side queue holds are dropped and counted; the others are all kept."""
    rig.run.log({"inner": 0.0})
    inside_write(rig, lambda: [rig.run.log({"inner": float(number)}) for number in range(position.SIDE_ROWS + 44)])
    rig.run.log({"outer": 1.0})
    kept = [row["inner"] for _, row in rig.rows() if "inner" in row][1:]
    assert kept == [float(number) for number in range(position.SIDE_ROWS)]
    assert rig.refused == 44


class Chatty:
    """A value that logs when it is read and when it goes."""

    def __init__(self, run):
        self.run = run

    def __float__(self):
        self.run.log({"read": 1.0})
        return 0.5

    def __del__(self):
        self.run.log({"gone": 1.0})


def test_values_that_log(rig):
    """A value whose __float__ and __del__ log is recorded, and so is what they log."""
    rig.run.log({"a": Chatty(rig.run)})
    gc.collect()
    assert [row for _, row in rig.rows()] == [{"read": 1.0}, {"a": 0.5}, {"gone": 1.0}]
    assert rig.refused == 0


def test_signal_handler_that_logs(rig):
    """A signal handler that logs, whenever it strikes, loses nothing and blocks nothing."""
    rig = Rig(rig.path.parent, 1 << 22)
    rig.run.log({"struck": 0.0})  # a new name would wait for the declaration that the handler interrupts
    rig.run.log({"a": -1.0})
    struck = []
    before = signal.signal(signal.SIGPROF, lambda *_: struck.append(rig.run.log({"struck": 1.0})))
    try:
        signal.setitimer(signal.ITIMER_PROF, 0.0005, 0.0005)
        for number in range(80_000):  # the ring holds as many
            rig.run.log({"a": float(number)})
            if number > 30_000 and struck:
                break
            if number % 1000 == 0:
                sum(range(50_000))  # the timer counts processor time, in ticks of some milliseconds
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    rows = [row for _, row in rig.rows()]
    assert [row["a"] for row in rows if "a" in row] == [float(sent) for sent in range(-1, number + 1)]
    assert sum(row.get("struck", 0.0) for row in rows) == len(struck) > 0
    assert rig.refused == 0


def test_many_threads(tmp_path, monkeypatch):
    """Rows of many threads are all there, each once, in the order of their thread."""
    monkeypatch.setattr(position, "PATIENCE", 60)  # a busy machine is not what is tested here
    monkeypatch.setattr(declarations, "PATIENCE", 60)
    rig = Rig(tmp_path, 1 << 22)
    start = threading.Barrier(8)

    def work(own):
        start.wait()
        for number in range(1000):
            rig.run.log({f"t{own}": float(number)})

    threads = [threading.Thread(target=work, args=(own,)) for own in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = [row for _, row in rig.rows()]
    for own in range(8):
        assert [row[f"t{own}"] for row in rows if f"t{own}" in row] == [float(number) for number in range(1000)]
    assert [sequence for _, sequence, *_ in rig.records()] == list(range(8000))
    assert rig.refused == 0


class Stuck:
    """A write of one thread that does not end until it is told to."""

    def __init__(self, rig):
        self.inside, self.go_on = threading.Event(), threading.Event()
        inside_write(rig, lambda: (self.inside.set(), self.go_on.wait(60)))
        self.thread = threading.Thread(target=rig.run.log, args=({"outer": 1.0},))
        self.thread.start()
        self.inside.wait(60)

    def end(self):
        self.go_on.set()
        self.thread.join()


def test_another_threads_write(rig, monkeypatch):
    """A row that another thread keeps from the ring is left to it after a moment; too many are dropped and counted."""
    monkeypatch.setattr(position, "PATIENCE", 0.0)
    rig.run.log({"a": 0.0})
    stuck = Stuck(rig)
    for number in range(1, position.SIDE_ROWS + 4):
        rig.run.log({"a": float(number)})
    stuck.end()
    rig.run.log({"a": -1.0})
    kept = [{"a": float(number)} for number in range(1, position.SIDE_ROWS + 1)]
    assert [row for _, row in rig.rows()] == [{"a": 0.0}, {"outer": 0.0}, {"outer": 1.0}, *kept, {"a": -1.0}]
    assert rig.refused == 3


def test_rows_that_waited_come_before_later_ones(rig, monkeypatch):
    """A row that was left to another thread's write stands before the next one of its own thread."""
    monkeypatch.setattr(position, "PATIENCE", 0.0)
    rig.run.log({"a": 0.0})
    stuck = Stuck(rig)
    rig.run.log({"a": 1.0})
    rig.run._tokens.append(True)  # that write ends, and was too early to see the row
    rig.run.log({"a": 2.0})
    found = [row["a"] for _, row in rig.rows() if "a" in row]
    stuck.end()
    assert found == [0.0, 1.0, 2.0]


def test_waiting_pays(rig, monkeypatch):
    """A row that waits for another thread's write is taken as soon as that ends."""
    monkeypatch.setattr(position, "PATIENCE", 10)
    rig.run.log({"a": 0.0})
    stuck = Stuck(rig)
    waiting = threading.Thread(target=rig.run.log, args=({"a": 1.0},))
    waiting.start()
    stuck.end()
    waiting.join()
    assert [row for _, row in rig.rows()][-2:] == [{"outer": 1.0}, {"a": 1.0}]
    assert rig.refused == 0


def test_interrupt_takes_the_token(rig):
    """Should an interrupt strike between taking the token and giving it back, writing goes on all the same."""
    rig.run.log({"a": 0.0})
    rig.run._tokens.clear()
    rig.run.log({"a": 1.0})
    rig.run.log({"a": 2.0})
    assert [row["a"] for _, row in rig.rows()] == [0.0, 1.0, 2.0]


def test_interrupted_write(rig):
    """An exception inside a write, Ctrl-C say, passes on, and the next row follows the last whole one."""

    def interrupt():
        raise KeyboardInterrupt

    inside_write(rig, interrupt)
    with pytest.raises(KeyboardInterrupt):
        rig.run.log({"outer": 1.0})
    rig.run.log({"outer": 2.0})
    assert [row["outer"] for _, row in rig.rows()] == [0.0, 2.0]
    assert [sequence for _, sequence, *_ in rig.records()] == [0, 1]


def test_deferred_row_that_another_thread_took(rig):
    """A deferred row that somebody else has written meanwhile is not written again."""
    rig.run._write_deferred()
    assert rig.records() == []


def in_child(work):
    """Run `work` in a forked child and return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            work()
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_forked_children_are_inert(rig):
    """A forked child writes nothing into what it shares with its parent: no row, no word, no declaration."""
    rig.run.log({"a": 1.0})
    words, schemas = rig.reader.words(), rig.schema.read_bytes()

    def child():
        rig.run.disarm()
        rig.run.log({"a": 2.0})
        rig.run.log({"new": 2.0, "bad": None})
        with rig.run.step(samples=2), rig.run.phase("child"), rig.run.phase("\0"):
            rig.run.event("x")
            rig.run.histogram("h", [1, 2])
        rig.run.finish()

    assert in_child(child) == 0
    assert (rig.reader.words(), rig.schema.read_bytes()) == (words, schemas)
    rig.run.log({"a": 3.0})
    assert [row["a"] for _, row in rig.rows()] == [1.0, 3.0]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_fork_in_the_middle_of_a_write(rig):
    """A child forked while the parent was writing is inert as well, and does not hang."""
    codes = []

    def fork():
        codes.append(in_child(lambda: (rig.run.disarm(), rig.run.log({"outer": 9.0}))))

    inside_write(rig, fork)
    rig.run.log({"outer": 1.0})
    assert codes == [0]
    assert [row["outer"] for _, row in rig.rows()] == [0.0, 1.0]


def use_everything(run):
    run.log({"a": 1.0})
    run.log({"new": 1.0, "text": "x", "odd": None}, step="x")
    with run.step(samples=3), run.phase("forward"):
        run.event("x")
        run.histogram("h", [1, 2])
    assert list(run.data([1, 2])) == [1, 2]
    run.watch(object())
    run.finish()


def test_use_after_the_end(rig, capsys):
    """After finish every call still works, records nothing and says nothing."""
    rig.run.log({"a": 0.0})
    rig.run._retire(ring.STATE_FINISHED)
    rig.intake.close(rig.run)
    words = rig.reader.words()
    use_everything(rig.run)
    assert rig.reader.words() == words
    assert words[ring.WORD_STATE] == ring.STATE_FINISHED
    assert len(rig.rows()) == 1
    assert capsys.readouterr().err == ""


def test_a_run_that_is_off(capsys):
    """A run that is off takes every call; its reason is told once."""
    run = Run.off("cannot record: no reason; none needed")
    use_everything(run)
    assert not run.recording
    assert capsys.readouterr().err == "stepscope: cannot record: no reason; none needed\n"


def test_late_thread_writes_nowhere(rig):
    """A thread that got hold of a layout before the end writes where nobody reads."""
    rig.run.log({"a": 0.0})
    layout = rig.intake.layouts["a",]
    head = rig.reader.words()[ring.WORD_HEAD]
    rig.run._retire(ring.STATE_FINISHED)
    rig.run._tokens.append(True)
    for _ in range(5000):
        rig.run._write(layout, 1, 1, (1.0,))
    assert rig.reader.words()[ring.WORD_HEAD] == head
    assert isinstance(rig.run._buffer, type(Mapping.scratch().buffer))


def test_metering(rig):
    """Some rows are timed: the header says how many, and how long they took in all."""
    for _ in range(2000):
        rig.run.log({"a": 1})
    words = rig.reader.words()
    assert 0 < words[ring.WORD_CALLS] < 200
    assert 0 < words[ring.WORD_CALL_NS] / words[ring.WORD_CALLS] < 1e8


class LimitError(Exception):
    pass


def test_time_limit_of_the_user(rig):
    """What a signal handler of the user's raises while a row is looked at goes on; what a value raises does not."""

    def handler(*_):
        raise LimitError

    class Slow:
        def __radd__(self, _):
            signal.raise_signal(signal.SIGUSR1)

        def __float__(self):
            return 1.0

    class Odd(Slow):
        def __radd__(self, _):
            raise LimitError

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        rig.run.log({"a": 1.0})
        with pytest.raises(LimitError):
            rig.run.log({"a": Slow()})
        rig.run.log({"a": Odd()})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(rig.rows()) == 2


def test_row_of_a_thread_that_is_too_late(rig):
    """A thread that is about to write when the run ends is neither told nor raised at."""
    rig.intake.disarm()
    assert rig.intake._row(rig.run, {"a": 1.0}, 0, None) is None
    rig.intake.refuse(OverflowError("x"))
    assert rig.said.getvalue() == ""
