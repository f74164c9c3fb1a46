from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.analysis.series.spikes import FEWEST, spikes

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def plateau(count=200, level=2.5, width=0.02, seed=0):
    return level + np.random.default_rng(seed).normal(0, width, count)


@pytest.mark.promise("S1-067")
def test_spike_that_stays_is_told_with_its_end():
    """A loss thrown back is one spike from its first point to its last, with its height."""
    loss = plateau()
    loss[100:108] += np.linspace(1.5, 0.1, 8)
    (spike,) = spikes(loss).spikes
    assert (spike.index, spike.peak) == (100, 100)
    assert spike.told <= 101
    assert 105 <= spike.end <= 108
    assert spike.ratio == pytest.approx(0.6, abs=0.05)
    assert spike.recovered


def test_loss_that_does_not_come_back_has_not_recovered():
    """A spike is open until the loss is back."""
    loss = plateau()
    loss[150:] += 4
    (spike,) = spikes(loss).spikes
    assert spike.index == 150
    assert not spike.recovered


@pytest.mark.parametrize("seed", range(10))
def test_start_of_training_is_no_spike(seed):
    """A falling loss with noise has none, however steep."""
    x = np.arange(3000)
    noise = np.random.default_rng(seed).normal(0, 0.05, 3000)
    assert spikes(2 + 9 * np.exp(-x / 150) + noise).spikes == ()


def test_hard_batches_are_noise():
    """Single high points are no spikes where the series has them all the time: at most one in 10 000 points."""
    found = [len(spikes(3 + 0.08 * np.random.default_rng(seed).standard_t(4, 10_000)).spikes) for seed in range(5)]
    assert sum(found) <= 5


def test_few_points_say_so():
    """Nobody knows what is usual before there are enough points."""
    for loss in ([], [2.77, 2.77, 2.77, 7.3, 8.7], [2.0] * FEWEST):
        found = spikes(loss)
        assert found.spikes == ()
        assert "not enough data" in found.reason


def test_repeated_digits_are_no_reason():
    """A loss that is printed with few digits, and so never moves, still needs a rise that matters."""
    loss = np.full(100, 2.5)
    loss[60] = 2.51
    assert spikes(loss).spikes == ()
    loss[60:62] = 3.5
    assert [spike.index for spike in spikes(loss).spikes] == [60]


def test_index_counts_what_is_not_finite():
    """Indices are those of the series as given."""
    loss = plateau()
    loss[[10, 40, 90]] = math.nan, math.inf, math.nan
    loss[100:103] += 2
    assert [spike.index for spike in spikes(loss).spikes] == [100]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60))
@settings(deadline=None)
def test_nothing_raises_or_warns(values):
    """Whatever the numbers, there is a result without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = spikes(values)
    assert found.points == np.isfinite(values).sum()
    assert all(math.isfinite(values[spike.index]) for spike in found.spikes)


@pytest.mark.promise("S1-067")
def test_real_spikes_are_found():
    """The mixtral run's known spikes are found with their own point or the next."""
    path = DATA / "megatron-golden" / "mixtral__mixtral_8x7b_alltoall_tp2pp4ep4_release"
    if not path.is_dir():
        pytest.skip("../shared/data/megatron-golden is not here")
    golden = json.loads((path / "golden_values_dev_dgx_h100.json").read_text(encoding="utf-8"))["lm loss"]["values"]
    steps = [int(step) for step in golden]
    found = spikes([float(value) for value in golden.values()]).spikes
    told = [steps[spike.told] for spike in found]
    assert all(any(step <= at <= step + 5 for at in told) for step in (2360, 2830, 3800, 3850, 4260, 4970))


def test_healthy_run_has_no_spike():
    """6 200 steps of a healthy training with very uneven batches have none."""
    path = DATA / "modded-nanogpt-runs" / "2024-10-10_Muon_with_train_loss.txt"
    if not path.is_file():
        pytest.skip("../shared/data/modded-nanogpt-runs is not here")
    loss = [float(value) for value in re.findall(r"train_loss:([\d.]+)", path.read_text(encoding="utf-8"))]
    assert len(loss) > 6000
    assert spikes(loss).spikes == ()


def test_single_hard_batches_of_a_small_loss_are_no_spikes():
    """A loss that has become small has noise that is a share of it, with a heavy tail."""
    draw = np.random.default_rng(0)
    small = (0.7 * np.exp(-np.arange(600) / 60) + 0.0005) * np.exp(draw.normal(size=600))
    small[[300, 400, 500]] = 0.3
    assert spikes(small).spikes == ()


def test_what_is_usual_is_not_known_after_twenty_points():
    """A modest rise is told later; one that nothing explains at once."""
    draw = np.random.default_rng(1)
    early = draw.normal(1.0, 0.05, 60)
    assert spikes(np.concatenate([early[:22], [1.2, 1.17], early[22:]])).spikes == ()
    assert [one.index for one in spikes(np.concatenate([early[:22], [3.5, 3.45], early[22:]])).spikes] == [22]
