from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stepscope.analysis.diagnosis import grpo
from stepscope.importers import formats
from stepscope.sources.diagnosis import diagnose_imported

LOGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "grpo-rookworld"
NAMES = sorted({*grpo.REWARD, *grpo.FLAT, *grpo.SPREAD, *grpo.KL, *grpo.PENALTY, *grpo.LENGTH, *grpo.CUT})
NAMES += sorted({*grpo.ENTROPY, *grpo.WRONG, "rewards/a/mean", "rewards/b/mean", "rewards/a/std", "loss"})
RANDOM = np.random.default_rng(7)
RISING = np.linspace(0.2, 0.8, 100) + RANDOM.normal(0, 0.02, 100)
DRAWN = RANDOM.bit_generator.state


@pytest.fixture(autouse=True)
def same_noise():
    """Let every test draw the same noise, in whatever order they run."""
    RANDOM.bit_generator.state = DRAWN


def kinds(**curves):
    """Return the kinds that are found beside a reward that rises."""
    named = {name.replace("__", "/"): np.array(value, np.float64) for name, value in curves.items()}
    return [one.kind for one in grpo.findings({"reward": RISING, **named})]


def noisy(first, last, count=100):
    return np.linspace(first, last, count) * RANDOM.normal(1, 0.03, count)


def test_a_healthy_training_gives_nothing():
    """A reward that rises with a moderate divergence and changing answers is fine."""
    healthy = {"kl": noisy(0.001, 0.08), "entropy": noisy(1.5, 0.9), "completions__mean_length": noisy(200, 300)}
    flat = np.full(100, 0.1)
    parts = {"rewards__format__mean": noisy(0.5, 0.9), "rewards__score__mean": noisy(0.2, 0.7)}
    assert kinds(**healthy, frac_reward_zero_std=flat, invalid_ratio=flat, **parts) == []


@pytest.mark.parametrize(
    ("curves", "kind"),
    [
        ({"frac_reward_zero_std": np.full(50, 0.5)}, "reward_zero_variance"),
        ({"reward_std": np.r_[np.ones(50), np.zeros(50)]}, "reward_zero_variance"),
        ({"rewards__a__mean": noisy(0.1, 5), "rewards__b__mean": np.full(100, 0.5)}, "reward_component"),
        ({"rewards__a__std": np.full(30, 0.99), "rewards__b__std": np.full(30, 0.01)}, "reward_component"),
        ({"kl": np.r_[noisy(0.01, 0.02, 80), noisy(0.5, 3.0, 40)]}, "kl_runaway"),
        ({"kl": noisy(-0.5, -0.4)}, "kl_negative"),
        ({"kl_penalty_ratio": np.full(20, 0.9)}, "kl_dominates"),
        ({"completions__mean_length": noisy(200, 900)}, "length_drift"),
        ({"completions__mean_length": noisy(200, 20)}, "length_drift"),
        ({"completions__clipped_ratio": noisy(0.01, 0.6)}, "length_drift"),
        ({"entropy": noisy(1.5, 0.05)}, "entropy_drift"),
        ({"entropy": noisy(0.5, 4.0)}, "entropy_drift"),
        ({"invalid_ratio": np.full(40, 0.3)}, "invalid_answers"),
    ],
)
def test_each_fault_is_found_alone(curves, kind):
    """A planted fault is found, and nothing beside it; its remedy is there."""
    assert kinds(**curves) == [kind]
    assert grpo.REMEDIES[kind]
    assert grpo.KINDS[kind]


def test_a_reward_that_does_not_rise():
    """A flat reward is reported from 40 values on; noise of a few is not."""
    flat = 0.4 + RANDOM.normal(0, 0.02, 60)
    assert [one.kind for one in grpo.findings({"reward": flat})] == ["reward_flat"]
    assert grpo.findings({"reward": flat[:30]}) == []
    [fell] = grpo.findings({"reward": RISING[::-1].copy()})
    assert "fallen" in fell.text


def test_the_divergence_from_the_policy_before_is_another_quantity():
    """verl's `actor/ppo_kl` is not the divergence from the reference: neither negative nor large is it a fault."""
    assert kinds(actor__ppo_kl=noisy(-0.5, -0.4)) == []
    assert kinds(actor__ppo_kl=np.r_[noisy(0.01, 0.02, 80), noisy(0.5, 3.0, 40)]) == []
    assert kinds(actor__ppo_kl=noisy(-0.5, -0.4), actor__kl_loss=noisy(-0.5, -0.4)) == ["kl_negative"]


def test_no_part_decides_a_reward_that_does_not_move():
    """Noise of one part beside constant ones moves nothing; nor do answers that all get the same."""
    parts = {"rewards/a/mean": 0.4 + RANDOM.normal(0, 0.02, 60), "rewards/b/mean": np.full(60, 0.5)}
    still = {"reward": 0.9 + RANDOM.normal(0, 0.02, 60), **parts}
    assert [one.kind for one in grpo.findings(still)] == ["reward_flat"]
    spread = {"rewards/a/std": np.full(60, 1e-9), "rewards/b/std": np.zeros(60)}
    assert "reward_component" not in [one.kind for one in grpo.findings({"reward": RISING, **spread})]


def test_other_runs_are_left_alone():
    """A run without a reward is no such training, whatever its other names are."""
    assert grpo.findings({"kl": noisy(0.01, 9.0), "entropy": noisy(2.0, 0.01), "loss": RISING}) == []
    assert grpo.findings({}) == []


@given(st.dictionaries(st.sampled_from(NAMES), arrays(np.float64, st.integers(0, 60)), max_size=6))
def test_any_values_are_judged_without_an_error(curves):
    """Empty, constant, huge and non-finite series never raise or warn."""
    for one in grpo.findings(curves):
        assert one.kind in grpo.KINDS
        assert one.text


@pytest.mark.skipif(not LOGS.is_dir(), reason="../shared/data/grpo-rookworld is not here")
def test_real_trainings_are_judged_as_their_authors_do():
    """The log of 1324 says that KL dominates and ends below its start; the longer one of 1950 has improved."""
    first, second = (formats.read(str(path))[0] for path in sorted(LOGS.glob("*.log")))
    found = {one["kind"]: one for one in diagnose_imported(first)["findings"]}
    assert {"kl_negative", "kl_dominates", "reward_flat"} <= found.keys()
    assert found["kl_dominates"]["evidence"]["share"] == pytest.approx(0.88, abs=0.02)
    assert "lower beta" in found["kl_dominates"]["remedy"]
    assert not {one["kind"] for one in diagnose_imported(second)["findings"]} & grpo.KINDS.keys()
