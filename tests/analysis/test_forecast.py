from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.series.forecast import (
    FEWEST_STEPS,
    disk_full,
    end_of_run,
    memory_leak,
    shared_leaks,
    total_steps,
)

GIB = 2.0**30
TIME = np.arange(0.0, 3600.0, 10.0)


def noise(count, width, seed=0):
    return np.random.default_rng(seed).normal(0, width, count)


@pytest.mark.promise("S4-005")
def test_leak_says_when_memory_ends():
    """A leak is told with its rate, and when it fills the memory, with an interval that holds the truth."""
    used = 4 * GIB + GIB * TIME / 3600 + noise(len(TIME), 0.02 * GIB)
    found = memory_leak("memory of rank 0", TIME, used, limit=8 * GIB)
    assert (found.kind, found.severity) == ("leak", "warning")
    assert found.evidence["left_low"] <= 3 * 3600 <= found.evidence["left_high"]
    assert " per hour (" in found.text
    assert memory_leak("memory of rank 0", TIME, used, limit=5.5 * GIB).severity == "critical"
    assert "full in" not in memory_leak("memory of rank 0", TIME, used).text


def test_healthy_memory_says_nothing():
    """Memory that does not grow is no finding."""
    assert memory_leak("memory", TIME, 4 * GIB + noise(len(TIME), 0.02 * GIB), limit=8 * GIB) is None
    assert memory_leak("memory", [], []) is None


def test_disk_that_fills_up_with_checkpoints():
    """Checkpoints that are kept fill the disk, which is told hours before; those that replace each other do not."""
    free = 100 * GIB - 2 * GIB * (TIME // 300)
    found = disk_full(TIME, free)
    assert found.kind == "disk_full"
    left = (100 * GIB - 2 * GIB * 11) / (2 * GIB) * 300
    assert found.evidence["left"] == pytest.approx(left, rel=0.2)
    assert disk_full(TIME, 100 * GIB - 2 * GIB * (TIME // 300 % 2)) is None
    assert disk_full(TIME, np.full(len(TIME), 100 * GIB)) is None


@pytest.mark.parametrize("seed", range(5))
def test_end_of_a_run_with_evaluations(seed):
    """The end is forecast from the recent pace, evaluations between the steps included."""
    rng = np.random.default_rng(seed)
    seconds = rng.lognormal(0, 0.1, 2000) + 30.0 * (np.arange(2000) % 50 == 49)
    seconds[0] = 300.0
    end = 1e9 + np.cumsum(seconds)
    found = end_of_run(end[:1000], np.arange(1000), 2000)
    assert found.low <= end[-1] - end[999] <= found.high
    assert found.seconds == pytest.approx(end[-1] - end[999], rel=0.1)


def test_intervals_hold_what_they_promise():
    """Over many runs with steps of random length the end lies in its 95 % interval about as often as that."""
    held = 0
    for seed in range(200):
        end = np.cumsum(np.random.default_rng(seed).gamma(4, 0.25, 600))
        found = end_of_run(end[:300], np.arange(300), 600)
        held += found.low <= end[-1] - end[299] <= found.high
    assert 180 <= held <= 200


def test_no_forecast_without_steps():
    """Too few steps, a run that is over, or steps that do not count up: no forecast."""
    few = np.arange(float(FEWEST_STEPS - 1))
    assert end_of_run(few, few, 100) is None
    done = np.arange(100.0)
    assert end_of_run(done, done, 100) is None
    assert end_of_run(done, np.zeros(100), 200) is None


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.floats(-1e6, 1e6)), max_size=60), st.integers(1, 10**9))
def test_any_steps_have_a_forecast_or_none(rows, total):
    """Whatever was recorded, a forecast is finite and inside its interval, or there is none."""
    found = end_of_run([row[0] for row in rows], [row[1] for row in rows], total)
    assert found is None or (math.isfinite(found.seconds) and found.low <= found.seconds <= found.high)


def test_total_steps_of_a_configuration():
    """How many steps a run makes is found in its configuration, however deep, under the names people use."""
    assert total_steps({"trainer": {"max_steps": 5000}, "lr": 1e-3}) == 5000
    assert total_steps({"train_iters": 10, "max_steps": -1}) == 10
    assert total_steps(None) is None
    assert total_steps({"max_steps": True, "deep": [{"max_steps": 3}]}) is None


def test_processes_of_one_machine_are_forecast_together():
    """Two equal leaks fill the memory in half the time; what a third process holds is not free."""
    time, gib = np.arange(300.0), 2.0**30
    grows, still = 4 * gib + time * 0.01 * gib, np.full(300, 6 * gib)
    found = shared_leaks({"rank 0": (time, grows), "rank 1": (time, grows), "rank 2": (time, still)}, 32 * gib)
    room = 32 - 2 * 7 - 6
    assert [one.evidence["left"] for one in found] == pytest.approx([room / 0.02] * 2, rel=0.03)
    (alone,) = shared_leaks({"rank 0": (time, grows)}, 32 * gib)
    assert alone.evidence["left"] == pytest.approx((32 - 7) / 0.01, rel=0.03)
