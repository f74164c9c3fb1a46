from __future__ import annotations

import csv
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.series.patterns import busy_ratio, pattern

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
COUNT = 1000
TIME = np.arange(COUNT) * 5.0


def noise(width=1.0, seed=0):
    return np.random.default_rng(seed).normal(0, width, COUNT)


def random_turns(seed=0):
    return np.repeat(np.random.default_rng(seed).permutation([0, 0, 1, 1, 1, 0, 1, 0, 1, 1] * 4), 25)


@pytest.mark.parametrize(
    ("values", "limit", "kind"),
    [
        (np.full(COUNT, 3.0), None, "constant"),
        (50 + noise(), None, "steady"),
        (0.99 + 0.002 * noise(), 1.0, "saturated"),
        (50 + 40 * np.sin(TIME / 30) + noise(), None, "periodic"),
        (90.0 * random_turns() + noise(), None, "switching"),
        (0.1 * TIME + noise(5), None, "drifting"),
        (1 + 0.1 * noise() + 50 * (np.random.default_rng(1).random(COUNT) < 0.02), None, "bursty"),
    ],
)
def test_use_is_told_apart(values, limit, kind):
    """Each way of use has its name."""
    assert pattern(TIME, values, limit=limit).kind == kind


def test_period_is_in_the_callers_time():
    """A checkpoint every 250 s has that period, whatever the interval of the samples."""
    values = 10 + noise(0.5)
    values[::50] += 30
    values[1::50] += 30
    assert pattern(TIME, values).period == pytest.approx(250)


def test_figures_are_the_plain_ones():
    """Mean, deviation of the population and extremes are numpy's."""
    values = 50 + noise()
    found = pattern(TIME, values)
    assert (found.mean, found.std) == pytest.approx((values.mean(), values.std()))
    assert (found.min, found.max) == (pytest.approx(values.min()), pytest.approx(values.max()))


def test_busy_ratio_is_the_share_of_the_upper_level():
    """Three quarters busy is 0.75; one hump, even or Gaussian, has no two levels."""
    assert busy_ratio(np.repeat([0.0, 90.0, 95.0, 100.0], 100)) == pytest.approx(0.75)
    assert busy_ratio(np.linspace(0, 1, 500)) is None
    assert busy_ratio(noise()) is None
    assert busy_ratio(np.zeros(30)) is None


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60))
@settings(deadline=None)
def test_nothing_raises_or_warns(values):
    """Whatever the numbers, there is a result without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pattern(range(len(values)), values, limit=1.0)
    finite = sum(math.isfinite(value) for value in values)
    assert found.points == finite
    assert ("not enough data" in found.reason) == (finite < 20)


def test_real_gpu_turns_between_idle_and_busy():
    """The log of a real GPU switches between two levels of memory use."""
    path = DATA / "gpu-telemetry-nvidia-smi" / "gpu_log.csv"
    if not path.is_file():
        pytest.skip("../shared/data/gpu-telemetry-nvidia-smi is not here")
    with path.open(encoding="utf-8", newline="") as file:
        power = [float(row[6].split()[0]) for row in csv.reader(file)]
    found = pattern(np.arange(len(power)) * 5.0, power)
    assert found.kind in {"switching", "periodic"}
    assert 0.05 < found.busy_ratio < 0.95
