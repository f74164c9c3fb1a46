from __future__ import annotations

import threading

from stepscope.watcher.machine import MachineThread
from tests.trackers.machines import Source, machine_of, wait_until


def test_machine_is_sampled_periodically_and_closed():
    """The thread is a daemon with a name; stopping closes the sources."""
    source, seen = Source({"cpu/usage_ratio": 0.5}), []
    thread = MachineThread("test", 0.001, machine_of(source), on_sample=seen.append)
    assert thread.start()
    assert not thread.start()
    assert (thread.thread.daemon, thread.thread.name) == (True, "stepscope-test")
    wait_until(lambda: len(seen) >= 3)
    thread.stop()
    wait_until(lambda: source.closed == 1)
    assert not thread.running
    assert thread.latest.values["cpu/usage_ratio"] == 0.5


def test_errors_are_counted_and_reported_and_sampling_goes_on():
    """Every exception is reported, and the next sample comes."""
    reported = []

    def refuse(sample):
        raise ValueError("no")

    thread = MachineThread("test", 0.001, machine_of(Source()), on_sample=refuse, report=reported.append)
    thread.start()
    wait_until(lambda: thread.samples >= 3)
    thread.stop()
    assert thread.errors >= 2
    assert str(reported[0]) == "no"


def test_machine_that_cannot_be_made_ends_the_thread():
    """The reason is reported; a later start may do better."""
    reported, machines = [], iter([OSError("no files left")])

    def make(interval):
        error = next(machines, None)
        if error is not None:
            raise error
        return machine_of(Source())(interval)

    thread = MachineThread("test", 60.0, make, report=reported.append)
    thread.start()
    wait_until(lambda: not thread.running)
    assert thread.start()
    wait_until(lambda: thread.samples == 1)
    thread.stop()
    assert [str(error) for error in reported] == ["no files left"]


def test_stop_from_inside_does_not_wait_for_itself():
    """A sample may stop its own thread."""
    ended = threading.Event()
    thread = MachineThread("test", 60.0, machine_of(Source()), on_sample=lambda sample: thread.stop(), on_end=ended.set)
    thread.start()
    assert ended.wait(60)


def test_another_process_is_not_running():
    """After a fork nothing runs, and a stop touches nothing."""
    pid, source = [1], Source()
    thread = MachineThread("test", 60.0, machine_of(source), pid=lambda: pid[0])
    thread.start()
    inner = thread.thread
    pid[0] = 2
    assert not thread.running
    pid[0] = 1
    assert thread.running
    thread.stop()
    inner.join(60)
    assert source.closed == 1
