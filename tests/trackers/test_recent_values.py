from __future__ import annotations

import copy
import json
import math
import pickle
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trackers.metrics import recent_values
from stepscope.trackers.metrics.recent_values import DeviceQueue, RecentValues
from stepscope.trackers.metrics.scalar import DeviceScalar
from tests.trackers.fakes import Gpu

NUMBERS = st.lists(st.integers(-1000, 1000) | st.floats(-10, 10), max_size=40)


@given(NUMBERS, st.integers(1, 12))
def test_reads_as_the_end_of_a_list(values, capacity):
    """A series is the list of its newest values, whatever their number and order."""
    series = RecentValues(values, capacity=capacity)
    kept = values[-capacity:]
    assert series == kept
    assert (len(series), list(series), series[1:], series.recorded) == (len(kept), kept, kept[1:], len(values))
    assert series[-1:] == kept[-1:]


@given(NUMBERS, st.integers(1, 5), st.integers(-2, 50))
def test_newest_takes_from_the_end(values, capacity, count):
    """The newest n are at most n, at most what is kept, and in order."""
    kept = values[-capacity:]
    assert RecentValues(values, capacity=capacity).newest(count) == (kept[-count:] if count > 0 else [])


@given(NUMBERS, st.integers(1, 12))
def test_is_a_list_for_whoever_takes_lists(values, capacity):
    """It is written as JSON, added to a list, copied, sorted and turned into an array as a list is."""
    series, kept = RecentValues(values, capacity=capacity), values[-capacity:]
    assert isinstance(series, list)
    assert (json.dumps(series), series + [1.0], series.copy()) == (json.dumps(kept), kept + [1.0], kept)  # noqa: RUF005
    assert (type(copy.deepcopy(series)), pickle.loads(pickle.dumps(series)), sorted(series)) == (
        list,
        kept,
        sorted(kept),
    )
    assert np.array(series).tolist() == np.array(kept).tolist()
    series += values
    assert (series, series.recorded) == ((kept + values)[-capacity:], 2 * len(values))


def test_what_is_no_number_is_kept_and_in_no_statistic():
    """A list of a user's own takes text as any list does."""
    series = RecentValues([1, "warm-up", None, 3])
    assert (series, series.statistics.count, series.statistics.mean) == ([1, "warm-up", None, 3], 2, 2.0)


def test_a_changed_list_takes_further_values_at_its_end():
    """Values taken out, put in or set stay so, and those of a device still find their places."""
    gpu = Gpu()
    series = RecentValues([1, 2, 3], capacity=3)
    assert series.pop(0) == 1
    series[0] = 7
    series.append(gpu.tensor(4.0))
    series.append(5)
    assert series == [3, 4.0, 5]


@pytest.mark.promise("S0-009")
def test_statistics_cover_what_is_no_longer_kept():
    """Memory is bounded by the capacity; mean, minimum and maximum are over all values."""
    series = RecentValues(range(1000), capacity=10)
    assert (len(series), series.statistics.count, series.statistics.minimum) == (10, 1000, 0)


def test_device_values_are_read_in_their_places_when_somebody_looks():
    """Pending tensors wait without a sync and then stand where they were appended."""
    gpu = Gpu()
    series = RecentValues([1.0, gpu.tensor(2.0), 3.0, gpu.tensor(math.nan)])
    assert gpu.waits == 0
    assert series[:3] == [1.0, 2.0, 3.0]
    assert (series.statistics.mean, series.statistics.nonfinite, gpu.waits) == (2.0, 1, 2)


def test_ready_values_are_read_by_the_next_append():
    """A framework that can say that a value is there needs no reader."""
    computed = []
    array = SimpleNamespace(is_ready=lambda: bool(computed), item=lambda: computed[0])
    series = RecentValues([array])
    computed.append(4.0)
    series.append(SimpleNamespace(is_ready=lambda: False, item=lambda: 5.0))
    assert series._statistics.maximum == 4.0


def test_a_value_that_the_device_cannot_give_is_counted():
    """A failing read loses that value alone."""
    series = RecentValues([Gpu().tensor("broken"), 2])
    assert (series.statistics.count, series.unreadable) == (1, 1)
    assert series[-1] == 2


def test_unread_device_values_stay_bounded(monkeypatch):
    """Without torch to join them, only the newest unread values are held and the others are counted."""
    monkeypatch.setattr(recent_values, "BLOCK", 4)
    gpu = Gpu()
    series = RecentValues([gpu.tensor(float(index)) for index in range(10)])
    assert len(series._queue) < 4
    assert series.dropped == 7
    assert series.statistics.count + series.dropped == 10


def test_torch_values_are_joined_on_their_device(monkeypatch):
    """Unread tensors become one tensor per block, and read back in their places."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(recent_values, "BLOCK", 4)
    series = RecentValues()
    for index in range(10):
        series.push(DeviceScalar(torch.tensor(float(index))))
    assert len(series._queue) == 4
    assert (series == [float(index) for index in range(10)], series.dropped) == (True, 0)


def test_the_oldest_unread_block_is_given_up(monkeypatch):
    """Past the limit of blocks the oldest is dropped and counted, not read."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(recent_values, "BLOCK", 2)
    monkeypatch.setattr(recent_values, "MAX_BLOCKS", 2)
    queue = DeviceQueue()
    for place in range(8):
        queue.add(place, DeviceScalar(torch.tensor(1.0)))
    assert (len(queue), queue.dropped) == (2, 4)


def test_threads_lose_nothing():
    """Values of several threads are all counted."""
    series = RecentValues(capacity=100)
    threads = [threading.Thread(target=series.extend, args=(range(500),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert series.statistics.count + series.dropped == 2000


def test_a_call_from_within_the_lock_ends():
    """A signal handler that interrupts an append can neither hang nor corrupt: its value is dropped and counted."""
    series = RecentValues([1])
    with series._lock:
        assert series.push(2) is False
        assert list(series) == [1]
    assert series.dropped == 1


def test_clear_forgets_everything():
    """After clear a series is as new."""
    series = RecentValues([1.5])
    series.clear()
    assert (series == [], series.recorded, series.statistics.count) == (True, 0, 0)
