from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.series.leak import FEWEST, assess
from stepscope.analysis.series.robust import theil_sen

MIB = 2.0**20
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
BASE = 4000 * MIB


def noise(count, seed=0, width=20 * MIB):
    return np.random.default_rng(seed).normal(0, width, count)


def series(count=300):
    return np.arange(count, dtype=float)


def verdict(values, **options):
    return assess(np.arange(len(values)), values, **options).verdict


@pytest.mark.promise("S4-005")
@pytest.mark.parametrize("count", [60, 300, 5000])
def test_leak_is_growth(count):
    """A steady leak under noise is growth, with its rate inside the interval that is given for it."""
    time = series(count)
    trend = assess(time, BASE + 600 * MIB * time / count + noise(count))
    assert trend.growing
    assert trend.rate_low <= 600 * MIB / count <= trend.rate_high
    assert trend.rate == pytest.approx(600 * MIB / count, rel=0.1)


@pytest.mark.promise("S4-005")
@pytest.mark.parametrize("time_constant", [0.02, 0.1, 0.2, 0.3])
def test_warm_up_is_no_growth(time_constant):
    """Memory that rises and levels off, as a warm-up or a cache that fills does, is no growth."""
    time = series()
    values = BASE + 1000 * MIB * (1 - np.exp(-time / (300 * time_constant))) + noise(300, width=5 * MIB)
    assert verdict(values) in {"settling", "jump"}


@pytest.mark.promise("S4-005")
@pytest.mark.parametrize("at", [0.15, 0.4, 0.7])
def test_bigger_batch_is_no_growth(at):
    """Memory that jumps once and stays, as with a bigger batch, is a jump."""
    time = series()
    assert verdict(BASE + 1000 * MIB * (time > at * 300) + noise(300)) == "jump"


def test_allocator_plateaus_are_no_growth():
    """An allocator that takes some large blocks early and no more afterwards is no growth."""
    time = series()
    assert verdict(BASE + 200 * MIB * np.minimum(5, time // 20)) == "settling"


def test_staircase_that_goes_on_is_growth():
    """A leak seen through an allocator that takes memory in blocks is growth all the same."""
    time = series()
    assert verdict(BASE + 64 * MIB * (time // 25)) == "growth"


def test_few_large_stairs_that_come_evenly_are_growth():
    """A leak of some KiB a step behind an allocator that takes 4 MiB at once is growth; records of a peak are not."""
    time = series(2000)
    assert verdict(300 * MIB + 8 * MIB * (time > 3) + 4 * MIB * (time // 280)) == "growth"
    records = np.searchsorted([3, 20, 60, 160, 400, 900], time)
    assert verdict(300 * MIB + 8 * MIB * records) != "growth"


@pytest.mark.parametrize("period", [7, 20, 50])
def test_sawtooth_is_steady(period):
    """Memory that is let go of again and again, as by a garbage collector, is steady."""
    time = series()
    assert verdict(BASE + 500 * MIB * (time % period) / period + noise(300, width=4 * MIB)) == "steady"


def test_leak_under_a_sawtooth_is_found():
    """A leak is found under a sawtooth five times as high as what it adds in one period."""
    time = series()
    values = BASE + 500 * MIB * (time % 20) / 20 + 800 * MIB * time / 300 + noise(300, width=4 * MIB)
    assert verdict(values) == "growth"


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_steady(seed):
    """Noise alone, and noise with spikes, is steady."""
    spikes = 3000 * MIB * (np.random.default_rng(seed).random(300) < 0.1)
    assert verdict(BASE + noise(300, seed)) == "steady"
    assert verdict(BASE + spikes + noise(300, seed)) == "steady"


def test_growth_after_a_warm_up_begins_after_it():
    """A leak behind a warm-up is found, and said to have begun when the warm-up had ended."""
    time = series()
    values = BASE + 1000 * MIB * (1 - np.exp(-time / 15)) + 500 * MIB * time / 300 + noise(300, width=5 * MIB)
    trend = assess(time, values)
    assert trend.growing
    assert 30 < trend.since < 150
    assert trend.rate == pytest.approx(500 * MIB / 300, rel=0.1)


def test_late_growth_says_since_when():
    """A leak that begins in the middle is found, with the moment it began and the rate since then."""
    time = series()
    trend = assess(time, BASE + np.maximum(0, time - 150) * 4 * MIB + noise(300))
    assert trend.growing
    assert trend.since == pytest.approx(150, abs=15)
    assert trend.rate == pytest.approx(4 * MIB, rel=0.1)


def test_time_left_has_its_uncertainty():
    """The time until memory ends is told with an interval that holds the true one."""
    time = series() * 10
    trend = assess(time, BASE + 2 * MIB * time + noise(300), limit=BASE + 12_000 * MIB)
    assert trend.left_low < trend.left < trend.left_high
    assert trend.left == pytest.approx((12_000 * MIB - 2 * MIB * time[-1]) / (2 * MIB), rel=0.05)


def test_no_time_left_beyond_the_limit():
    """Memory that has reached its limit has no time left; without growth nothing is said about time."""
    time = series()
    assert assess(time, BASE + time * MIB * 5, limit=BASE).left == 0.0
    assert assess(time, BASE + noise(300), limit=2 * BASE).left is None


@pytest.mark.parametrize("count", [0, 1, FEWEST - 1])
def test_too_few_say_nothing(count):
    """Fewer readings than are needed give no verdict, and say how many are."""
    trend = assess(range(count), range(count))
    assert (trend.verdict, trend.points, trend.rate) == ("unknown", count, None)
    assert str(FEWEST) in trend.reason


def test_one_moment_says_nothing():
    """Readings that were all taken at the same moment give no verdict."""
    assert assess([5.0] * 50, range(50)).verdict == "unknown"


def test_nonfinite_readings_are_left_out():
    """Readings that are NaN or infinite change nothing, and the order of the readings neither."""
    time = series()
    values = BASE + 5 * MIB * time
    holes = values.copy()
    holes[::7] = math.nan
    holes[3] = math.inf
    assert assess(time, holes).growing
    assert assess(time[::-1], values[::-1]) == assess(time, values)


def test_small_growth_is_not_worth_a_word():
    """A rise below what the caller calls worth a word is steady."""
    time = series()
    assert verdict(BASE + time * 4096) == "steady"
    assert verdict(BASE + time * 4096, least=0) == "growth"


@given(st.lists(st.tuples(st.floats(-1e15, 1e15), st.floats(allow_nan=True, allow_infinity=True)), max_size=60))
def test_any_series_has_a_verdict(rows):
    """Whatever the readings, there is a verdict, and figures that are finite or absent."""
    trend = assess([time for time, _ in rows], [max(-1e15, min(1e15, value)) for _, value in rows], limit=1e12)
    assert trend.verdict in {"growth", "settling", "jump", "steady", "unknown"}
    assert all(math.isfinite(value) for value in trend.facts().values() if isinstance(value, float))


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60))
def test_huge_readings_have_a_verdict(values):
    """Readings of any size are judged without a warning; what no memory can be is left out."""
    assert assess(range(len(values)), values).verdict in {"growth", "settling", "jump", "steady", "unknown"}


def test_slope_ignores_outliers():
    """The slope is that of most pairs: a third of wild readings does not move it out of its interval."""
    time, value = series(60), series(60) * 3.0
    value[::4] += 1e6
    middle, low, high = theil_sen(time, value)
    assert low <= 3.0 <= high
    assert middle == pytest.approx(3.0, rel=0.01)


def test_tiny_leak_of_an_exact_allocator_is_found():
    """An allocator that counts exactly shows 1 % in 1 000 steps within 25 steps: no noise rises along a line."""
    time = series(25)
    trend = assess(time, 40e9 * (1 + 1e-5 * time))
    assert trend.growing
    assert trend.rate == pytest.approx(40e4, rel=0.01)


@pytest.mark.parametrize("seed", range(8))
def test_leak_under_noise_of_batches_is_found(seed):
    """A leak whose rise is only some times the noise is found by its line; without it, the same noise is steady."""
    time = series(40)
    values = BASE + noise(40, seed, 60 * MIB)
    assert assess(time, values + 350 * MIB * time / 40).growing
    assert assess(time, values).verdict == "steady"


@pytest.mark.parametrize("seed", range(4))
def test_slower_and_slower_is_no_growth(seed):
    """A rise that gets slower all the time, as of records and fragmentation, is no leak, in no late part of it."""
    time = series()
    assert verdict(BASE + 150 * MIB * np.log1p(time) + noise(300, seed, 2 * MIB)) != "growth"


def real_series():
    """Yield the memory series of real training runs: of fine-tuning, and of Megatron's own tests."""
    files = sorted((DATA / "peft-memory-metamathqa").glob("*.json"))
    if not files:
        pytest.skip("the real data is not here: ../shared/data/peft-memory-metamathqa")
    for path in files:
        rows = [row for row in json.loads(path.read_text())["train_info"]["metrics"] if "mem reserved avg" in row]
        for key in ("mem reserved avg", "mem allocated avg"):
            yield np.array([row["step"] for row in rows]), np.array([row[key] for row in rows])
    for path in sorted((DATA / "megatron-golden").glob("*/*.json")):
        for key, found in json.loads(path.read_text()).items():
            if key.startswith("mem-"):
                yield (
                    np.array([int(step) for step in found["values"]]),
                    np.array(list(map(float, found["values"].values()))),
                )


def test_real_training_does_not_leak():
    """The memory of real training runs, of which none leaked, is steady, or jumped once at the start."""
    assert {assess(step, value).verdict for step, value in real_series()} <= {"steady", "jump"}


def test_leak_planted_in_real_training_is_found():
    """A leak of 1 % in 1 000 steps is found in at least 95 % of these series, with about its rate."""
    rates = []
    for step, value in real_series():
        leak = 0.01 / 1000 * float(np.nanmedian(value))
        trend = assess(step, value + leak * step)
        rates.append(trend.rate / leak if trend.growing else math.nan)
    assert np.isfinite(rates).mean() >= 0.95
    assert np.nanmedian(rates) == pytest.approx(1.0, abs=0.05)


def test_real_gpu_with_idle_and_busy_phases_does_not_leak():
    """Memory of a GPU that was idle and busy by turns for hours is no growth, in no window of it."""
    path = DATA / "gpu-telemetry-nvidia-smi" / "gpu_log.csv"
    if not path.exists():
        pytest.skip("the real data is not here: ../shared/data/gpu-telemetry-nvidia-smi")
    with path.open() as file:
        used = np.array([float(row[3].split()[0]) * MIB for row in csv.reader(file)])
    windows = [used, *(used[start : start + size] for size in (60, 200, 500) for start in range(0, 1400, 97))]
    assert "growth" not in {verdict(window) for window in windows}
