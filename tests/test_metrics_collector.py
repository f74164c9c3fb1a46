from __future__ import annotations

import threading

import pytest

from stepscope.monitor import MetricsCollector, TrainingMetrics
from tests.fakes import FakeRun


class Seconds:
    """A clock that moves when told."""

    now = 0.0

    def __call__(self):
        return self.now


def steps(count, start=0):
    return [TrainingMetrics(step=step, loss=step / 10) for step in range(start, start + count)]


def collect(collector, items):
    for metrics in items:
        collector.collect(metrics)
    return collector


@pytest.mark.promise("S1-022")
def test_a_full_buffer_is_written():
    """Steps wait until there are buffer_size of them, then all are written in order."""
    run = FakeRun()
    collector = collect(MetricsCollector(run, buffer_size=3), steps(2))
    assert (run.rows, len(collector)) == ([], 2)
    collect(collector, steps(1, start=2))
    assert run.rows == [(0, {"loss": 0.0}), (1, {"loss": 0.1}), (2, {"loss": 0.2})]
    assert (len(collector), collector.flushed) == (0, 3)


def test_a_buffer_is_written_when_its_interval_has_passed():
    """The next step after flush_interval seconds writes what waits."""
    run, clock = FakeRun(), Seconds()
    collector = collect(MetricsCollector(run, buffer_size=100, flush_interval=5.0, clock=clock), steps(1))
    clock.now = 4.9
    collect(collector, steps(1, start=1))
    assert run.rows == []
    clock.now = 5.0
    assert collector.flush_if_due() == 2


def test_stopping_writes_what_waits():
    """Leaving the block writes the rest, and stopping again does nothing."""
    run = FakeRun()
    with MetricsCollector(run, buffer_size=100) as collector:
        collect(collector, steps(4))
    collector.stop()
    assert [step for step, _ in run.rows] == [0, 1, 2, 3]


def test_a_stalled_loop_has_its_steps_written():
    """A thread watches the interval while nothing is collected."""
    written = threading.Event()
    run = FakeRun()
    run.log = lambda values, step=None: written.set()
    with MetricsCollector(run, buffer_size=100, flush_interval=0.01) as collector:
        collect(collector, steps(1))
        assert written.wait(60)


def test_one_step_is_written_at_once_with_a_buffer_of_one():
    """buffer_size=1 passes every step on, without a thread."""
    run = FakeRun()
    collector = MetricsCollector(run, buffer_size=1)
    collector.start()
    collect(collector, steps(1))
    assert (len(run.rows), collector._thread) == (1, None)


def test_a_buffered_row_carries_its_own_time():
    """The time of recording survives the wait in the buffer."""
    run = FakeRun()
    MetricsCollector(run, buffer_size=2, flush_interval=0).collect(TrainingMetrics(step=1, loss=1.0, timestamp=12.5))
    assert run.rows == [(1, {"loss": 1.0, "timestamp": 12.5})]


def test_memory_is_bounded_without_a_run():
    """The newest steps are kept for a run that comes later; the others are counted."""
    collector = collect(MetricsCollector(buffer_size=10), steps(25))
    assert (len(collector), collector.dropped, collector.collected) == (10, 15, 25)
    collector.run = FakeRun()
    assert collector.flush() == 10


def test_threads_lose_nothing():
    """Steps of several threads are all written, each once."""
    run = FakeRun()
    collector = MetricsCollector(run, buffer_size=7)
    threads = [threading.Thread(target=collect, args=(collector, steps(200, start=n * 200))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    collector.stop()
    assert len({step for step, _ in run.rows}) == len(run.rows) == 800 - collector.dropped


def test_custom_metrics_are_computed_per_step():
    """A function gets the step's metrics, or nothing, and its result stands beside them."""
    run = FakeRun()
    functions = {"double": lambda metrics: metrics.loss * 2, "constant": lambda: 7, "absent": lambda: None}
    MetricsCollector(run, buffer_size=1, custom_metrics=functions).collect(TrainingMetrics(step=0, loss=1.5))
    assert run.rows == [(0, {"loss": 1.5, "double": 3.0, "constant": 7})]


def test_a_failing_function_is_isolated_and_left_out_after_three_failures(capsys):
    """What it raises is counted, said once, and never reaches the loop or the other metrics."""
    calls = []

    def broken(metrics):
        calls.append(metrics.step)
        raise ZeroDivisionError("no tokens")

    collector = MetricsCollector(FakeRun(), buffer_size=1, custom_metrics={"bad": broken, "good": lambda: 1})
    collect(collector, steps(6))
    assert (calls, collector.custom.errors, collector.custom.disabled()) == ([0, 1, 2], {"bad": 3}, ["bad"])
    assert collector.run.rows[5] == (5, {"loss": 0.5, "good": 1})
    assert capsys.readouterr().err.count("no tokens") == 1


def test_a_success_clears_the_failures_before_it():
    """Only failures in a row disable a function."""

    def sometimes(metrics):
        return 1 / (metrics.step % 2)

    collector = collect(MetricsCollector(FakeRun(), buffer_size=1, custom_metrics={"odd": sometimes}), steps(10))
    assert (collector.custom.errors, collector.custom.disabled()) == ({"odd": 5}, [])


def test_what_cannot_be_called_is_refused_with_a_notice(capsys):
    """A number given as a function is said to be none."""
    collector = MetricsCollector(FakeRun(), custom_metrics={"lr": 0.1})
    collect(collector, steps(1))
    assert "'lr': a float is not a function" in capsys.readouterr().err


@pytest.mark.parametrize("size", [0, -5])
def test_a_senseless_buffer_size_means_one(size):
    """A buffer always has room for one step."""
    assert MetricsCollector(buffer_size=size).buffer_size == 1
