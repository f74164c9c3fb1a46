from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.vocabulary import BY_NAME
from stepscope.integrations.throughput import Load, StepClock, Throughput, Totals
from tests.fakes import Clock, FakeRun


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def counted(clock):
    return Throughput(FakeRun(), clock=clock)


def test_accumulation(counted, clock):
    """Batches that are accumulated belong to one step: samples add up, the time is that of the whole step."""
    counted.step_end()
    for _ in range(4):
        counted.batch(8)
        clock.now += 0.5
    row = counted.step_end()
    assert row == {"steps_per_second": 0.5, "microbatches_per_second": 2.0, "samples_per_second": 16.0}


def test_short_last_batch(counted, clock):
    """A short last batch counts by its size and its time, not as a full one or as a rate of its own."""
    counted.step_end()
    for samples, seconds in ((32, 1.0), (32, 1.0), (4, 0.25)):
        counted.batch(samples)
        clock.now += seconds
        row = counted.step_end()
    assert row["samples_per_second"] == pytest.approx(68 / 2.25)


@given(st.lists(st.tuples(st.integers(1, 512), st.floats(0.01, 10)), min_size=1, max_size=20))
def test_rate_is_a_ratio_of_sums(steps):
    """For any batch sizes and times the rate is all samples divided by all the time."""
    clock = Clock()
    counted = Throughput(FakeRun(), clock=clock)
    counted.step_end()
    row = {}
    for samples, seconds in steps:
        counted.batch(samples)
        clock.now += seconds
        row = counted.step_end()
    total, time = sum(samples for samples, _ in steps), sum(seconds for _, seconds in steps)
    assert row["samples_per_second"] == pytest.approx(total / time)
    assert row["steps_per_second"] == pytest.approx(len(steps) / time)
    assert counted.samples_total == total


def test_window(clock):
    """Only the last steps count: a change of speed is seen in full after a window."""
    counted = Throughput(FakeRun(), window=2, clock=clock)
    counted.step_end()
    for seconds in (1.0, 1.0, 2.0, 2.0):
        counted.batch(10)
        clock.now += seconds
        row = counted.step_end()
    assert row["samples_per_second"] == 5.0


def test_padding(counted, clock):
    """Tokens are those that are no padding, and the share of padding is known."""
    counted.step_end()
    counted.batch(2, tokens=60, places=100)
    counted.batch(2, tokens=30, places=100)
    clock.now += 3.0
    row = counted.step_end()
    assert (row["tokens"], row["tokens_per_second"]) == (90, 30.0)
    assert row["padding_ratio"] == pytest.approx(0.55)


def test_first_step_has_no_rate(counted, clock):
    """The first step of an attempt counts in no rate, for start-up and skipped batches are in its time."""
    clock.now += 100
    counted.batch(8)
    assert counted.step_end() == {}
    assert counted.samples_total == 8


def test_resume(clock):
    """After a resume totals go on from the earlier attempt, and rates start anew."""
    counted = Throughput(FakeRun(), clock=clock, samples=1000, tokens=5000)
    for _ in range(2):
        counted.batch(10, tokens=50)
        clock.now += 1
        row = counted.step_end()
    assert (counted.samples_total, counted.tokens_total, row["samples_per_second"]) == (1020, 5100, 10.0)
    clock.now += 50
    counted.resumed()
    counted.batch(10)
    assert "samples_per_second" not in counted.step_end()


def test_evaluation_is_left_out(counted, clock):
    """Neither the time nor the batches of an evaluation are the training's."""
    counted.step_end()
    counted.batch(8)
    clock.now += 1
    with counted.paused(), counted.paused():
        counted.batch(1000)
        clock.now += 50
    clock.now += 1
    assert counted.step_end()["samples_per_second"] == 4.0


def test_unknown_is_absent(counted, clock):
    """A step whose samples are unknown makes no rate of samples, and does not lower that of the others."""
    counted.step_end()
    clock.now += 1
    assert counted.step_end() == {"steps_per_second": 1.0}
    counted.batch(6)
    clock.now += 2
    assert counted.step_end()["samples_per_second"] == 3.0


def test_no_time_no_rate(counted):
    """Where no time has passed there is no rate, and no division by zero."""
    counted.step_end()
    counted.batch(6)
    assert counted.step_end() == {}


def test_tokens_on_a_device(counted, clock):
    """Tokens that are counted on a device stay there."""
    pytest.importorskip("torch")
    import torch

    from tests.integrations.stand_ins import Gpu

    Gpu.waits.clear()
    counted.step_end()
    for _ in range(2):
        counted.batch(4, tokens=Gpu(torch.ones(4, 5)).sum(), places=25)
    clock.now += 2
    row = counted.step_end()
    assert isinstance(row["tokens_per_second"], Gpu)
    assert float(row["tokens_per_second"].host) == 20.0
    assert float(row["padding_ratio"].host) == pytest.approx(0.2)
    assert Gpu.waits == []


def test_names_are_known(counted, clock):
    """Every name that is recorded is in the vocabulary."""
    counted.step_end()
    for _ in range(2):
        counted.batch(4, tokens=20, places=25)
    clock.now += 2
    assert all(name in BY_NAME for name in counted.step_end())


def test_step_clock_leaves_pauses_out(clock):
    """Time between pause and resume is not part of a step, also if the pause spans its end."""
    steps = StepClock(clock)
    assert steps.step() is None
    clock.now += 2.0
    steps.pause()
    clock.now += 7.0
    assert steps.step() == 2.0
    clock.now += 1.0
    steps.resume()
    clock.now += 3.0
    assert steps.step() == 3.0


def test_totals_leave_out_what_is_unknown():
    """Steps without a count lower no rate of samples; without any step there is no rate."""
    assert Totals().rates() == {}
    totals = Totals([Load(2.0, 8, 100), Load(2.0)])
    assert totals.rates() == {"steps_per_second": 0.5, "samples_per_second": 4.0, "tokens_per_second": 50.0}
