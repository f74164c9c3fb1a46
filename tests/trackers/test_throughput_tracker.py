from __future__ import annotations

import math

import pytest

from stepscope.profiling import ThroughputTracker
from tests.fakes import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tracker(clock):
    return ThroughputTracker(window_size=100, clock=clock)


def feed(tracker, clock, *updates):
    for seconds, samples, tokens in updates:
        clock.now += seconds
        tracker.update(num_samples=samples, num_tokens=tokens)


@pytest.mark.promise("S4-011")
def test_rate_is_what_was_taken_in_by_its_time(tracker, clock):
    """The rate is the samples and tokens of the updates over the time that these took."""
    tracker.start()
    feed(tracker, clock, (0.5, 8, 1000), (1.5, 8, 3000))
    rates = tracker.get_current_throughput()
    assert (rates["samples_per_sec"], rates["tokens_per_sec"], rates["batches_per_sec"]) == (8.0, 2000.0, 1.0)


@pytest.mark.promise("S4-012")
def test_first_update_starts_the_clock(tracker, clock):
    """Without a start the first update has no time: rates are NaN until the second, and then those of the second."""
    assert math.isnan(tracker.get_current_throughput()["samples_per_sec"])
    feed(tracker, clock, (30.0, 8, 8))
    assert math.isnan(tracker.get_current_throughput()["samples_per_sec"])
    feed(tracker, clock, (2.0, 8, 8))
    assert tracker.get_current_throughput()["samples_per_sec"] == 4.0


@pytest.mark.promise("S4-012")
def test_no_time_is_not_infinite(tracker, clock):
    """Updates between which no time passed give NaN, never infinity or an error."""
    feed(tracker, clock, (0.0, 8, 8), (0.0, 8, 8))
    assert all(math.isnan(rate) for rate in tracker.get_current_throughput().values())
    assert all(math.isnan(rate) for rate in tracker.get_average_throughput().values())


@pytest.mark.promise("S4-012")
def test_pause_is_left_out(tracker, clock):
    """What lies between pause and resume is left out of the time, also when updates come meanwhile."""
    tracker.start()
    feed(tracker, clock, (1.0, 10, None))
    with tracker.paused():
        clock.now += 1000.0
    feed(tracker, clock, (1.0, 10, None))
    assert tracker.get_current_throughput()["samples_per_sec"] == 10.0
    tracker.pause()
    feed(tracker, clock, (50.0, 0, None))
    clock.now += 50.0
    tracker.resume()
    feed(tracker, clock, (1.0, 10, None))
    assert tracker.get_average_throughput()["samples_per_sec"] == 10.0


def test_pause_that_is_not_declared_counts(tracker, clock):
    """Time that nobody declared a pause is time: a stall lowers the rate."""
    tracker.start()
    feed(tracker, clock, (1.0, 10, None), (99.0, 10, None))
    assert tracker.get_current_throughput()["samples_per_sec"] == 0.2


def test_window_is_the_last_updates(clock):
    """The current rate is over the last updates of the window, the average over all."""
    tracker = ThroughputTracker(window_size=2, clock=clock)
    tracker.start()
    feed(tracker, clock, (1.0, 1, None), (1.0, 10, None), (1.0, 30, None))
    assert tracker.get_current_throughput()["samples_per_sec"] == 20.0
    assert tracker.get_average_throughput()["samples_per_sec"] == pytest.approx(41 / 3)


def test_what_is_never_given_is_not_known(tracker, clock):
    """Tokens that were never given are NaN, and samples that were given only at times are over their own time."""
    tracker.start()
    feed(tracker, clock, (1.0, 10, None), (1.0, None, None))
    rates = tracker.get_current_throughput()
    assert math.isnan(rates["tokens_per_sec"])
    assert (rates["samples_per_sec"], rates["batches_per_sec"]) == (10.0, 1.0)


@pytest.mark.parametrize("nonsense", ["many", -1, float("nan"), float("inf"), [1, 2]])
def test_nonsense_is_told_once(tracker, clock, capsys, nonsense):
    """What is no count is left out and told once; nothing raises."""
    tracker.start()
    feed(tracker, clock, (1.0, nonsense, 5), (1.0, nonsense, 5))
    assert math.isnan(tracker.get_current_throughput()["samples_per_sec"])
    assert tracker.get_current_throughput()["tokens_per_sec"] == 5.0
    assert capsys.readouterr().err.count("cannot use num_samples") == 1


class DeviceCount:
    """A one-element tensor on a device; reading it is a wait."""

    reads = 0

    def __init__(self, value):
        self.value, self.device, self.shape = value, "cuda:0", ()

    def detach(self):
        return self

    def clone(self):
        return DeviceCount(self.value)

    def reshape(self, shape):
        return self

    def __add__(self, other):
        return DeviceCount(self.value + other.value)

    def __truediv__(self, seconds):
        return DeviceCount(self.value / seconds)

    def item(self):
        DeviceCount.reads += 1
        return self.value


def test_count_on_a_device_is_read_when_somebody_asks(tracker, clock):
    """A count on a device is not waited for by the update, however many there are."""
    tracker.start()
    DeviceCount.reads = 0
    feed(tracker, clock, *[(1.0, DeviceCount(4), None)] * 3000)
    assert DeviceCount.reads == 0
    assert tracker.get_average_throughput()["samples_per_sec"] == 4.0
    assert DeviceCount.reads < 2000
