"""The device's clock: never waited for, read when it is ready, for the right step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which is instrumented")

from stepscope.integrations.torch.device import MOST_PENDING, DeviceClock  # noqa: E402 - it needs torch
from tests.integrations import torch_rig as tr  # noqa: E402 - it needs torch


class Device:
    """A stand-in for torch.cuda: work that takes device time, done when the test says so; waiting is counted."""

    def __init__(self):
        self.now = self.done = 0.0
        self.waits, self.made, self.capturing = 0, 0, False
        device = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing
                device.made += 1
                self.at = None

            def record(self):
                self.at = device.now

            def query(self):
                return self.at <= device.done

            def elapsed_time(self, other):
                assert self.query()
                assert other.query(), "torch raises here: the event has not happened"
                return other.at - self.at

            def synchronize(self):
                device.waits += 1

        self.Event = Event

    def is_current_stream_capturing(self):
        return self.capturing

    def is_initialized(self):
        return True

    def synchronize(self):
        self.waits += 1

    def work(self, milliseconds):
        self.now += milliseconds


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def logged():
    return []


@pytest.fixture
def clock(device, logged):
    return DeviceClock(device, lambda row, step: logged.append((step, row)))


def step(clock, device, index):
    clock.mark("forward")
    device.work(3)
    clock.mark()
    device.work(10)  # nobody's
    clock.mark("backward")
    device.work(6)
    clock.mark()
    clock.seal(index)


def test_times_are_recorded_when_the_device_has_got_there(clock, device, logged):
    """Nothing is recorded, and nothing waits, until the events have happened; then each step has its own times."""
    step(clock, device, 0)
    step(clock, device, 1)
    assert logged == []
    device.done = 19.0
    clock.settle()
    assert logged == [(0, {"device/forward_seconds": 0.003, "device/backward_seconds": 0.006})]
    device.done = device.now
    clock.settle()
    assert [index for index, _ in logged] == [0, 1]
    assert device.waits == 0


def test_events_are_used_again(clock, device):
    """A training of a thousand steps makes no more events than are on their way at once."""
    for index in range(1000):
        step(clock, device, index)
        device.done = device.now
    assert device.made <= 12


def test_a_device_that_hangs_costs_no_memory(clock, device, logged):
    """Past a limit the times of further steps are given up and counted."""
    for index in range(MOST_PENDING + 10):
        step(clock, device, index)
    assert clock.dropped == 10
    device.done = device.now
    clock.settle()
    assert len(logged) == MOST_PENDING


def test_nothing_is_recorded_into_a_graph(clock, device, logged):
    """While a CUDA graph is captured no event is recorded: it would become part of the graph."""
    device.capturing = True
    step(clock, device, 0)
    assert device.made == 0


def test_a_training_on_a_device_has_both_clocks(monkeypatch, tmp_path, device):
    """Once the program has woken the device every step has the host's phases and the device's, and no call waits."""
    host = tr.install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", device.is_initialized)
    monkeypatch.setattr(torch.cuda, "Event", device.Event)
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", device.is_current_stream_capturing)
    with tr.instrumented(tmp_path) as rig:
        model = tr.Net(host, forward=1, backward=1)
        model.linear.register_forward_hook(lambda *_: device.work(5))
        optimizer = tr.SlowSGD(model.parameters(), host, 1)
        for x, y in tr.loader(tr.Slow(host, length=12), 2):
            tr.loss_of(model(x), y).backward()
            optimizer.step()
            device.done = device.now
    rows = [(index, row) for index, row in rig.rows() if "device/forward_seconds" in row]
    assert [index for index, _ in rows] == list(range(1, 1 + len(rows)))  # the first step wakes it
    assert len(rows) >= 4
    assert all(row["device/forward_seconds"] == 0.005 for _, row in rows)
    assert [found["forward"] for found in tr.steps_of(rig)] == [1] * 6
    assert device.waits == 0
