from __future__ import annotations

import threading

from stepscope.trackers.monitor.ticker import Ticker
from tests.trackers.machines import wait_until


class Work:
    """Counts, and raises when told."""

    def __init__(self, error=None):
        self.ticks, self.closed, self.error = 0, 0, error

    def tick(self):
        self.ticks += 1
        if self.error is not None:
            raise self.error

    def close(self):
        self.closed += 1


def test_work_is_done_again_and_again_and_let_go():
    """The thread is a daemon with a name; stopping closes the work, from the same thread."""
    work, ticker = Work(), Ticker("test", report=lambda error: None)
    assert ticker.start(lambda: work, 0.001)
    assert (ticker.thread.daemon, ticker.thread.name) == (True, "test")
    wait_until(lambda: work.ticks >= 3)
    ticker.stop()
    wait_until(lambda: work.closed == 1)
    assert not ticker.running


def test_work_that_raises_is_told_and_goes_on():
    """Every error is counted and reported, and the next time comes."""
    said, work = [], Work(ValueError("no"))
    ticker = Ticker("test", said.append)
    ticker.start(lambda: work, 0.001)
    wait_until(lambda: work.ticks >= 3)
    ticker.stop()
    assert ticker.errors >= 3
    assert str(said[0]) == "no"


def test_work_that_cannot_be_made_ends_the_thread():
    """The reason is told; a later start may do better."""
    said = []

    def broken():
        raise OSError("no files left")

    ticker = Ticker("test", said.append)
    ticker.start(broken, 0.001)
    wait_until(lambda: not ticker.running)
    work = Work()
    assert ticker.start(lambda: work, 60)
    wait_until(lambda: work.ticks == 1)
    ticker.stop()
    assert [str(error) for error in said] == ["no files left"]


def test_a_stop_from_inside_does_not_wait_for_itself():
    """Work may stop its own ticker."""
    ended = threading.Event()

    class Once(Work):
        def tick(self):
            ticker.stop()

        def close(self):
            ended.set()

    ticker = Ticker("test", report=lambda error: None)
    ticker.start(Once, 60)
    assert ended.wait(60)


def test_another_process_is_not_running():
    """After a fork, told by the process id, nothing runs and a stop touches nothing."""
    pid, work = [1], Work()
    ticker = Ticker("test", report=lambda error: None, pid=lambda: pid[0])
    ticker.start(lambda: work, 60)
    thread = ticker.thread
    pid[0] = 2
    assert not ticker.running
    pid[0] = 1
    assert ticker.running
    ticker.stop()
    thread.join(60)
    assert work.closed == 1
