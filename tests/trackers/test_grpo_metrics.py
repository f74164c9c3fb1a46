from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.metrics import GRPOMetricsTracker

LOGS = Path(__file__).resolve().parents[3] / "shared" / "data" / "grpo-rookworld"


class Run:
    """A run that keeps what is logged."""

    def __init__(self):
        self.rows = []

    def log(self, values, *, step=None):
        self.rows.append((step, values))


@pytest.mark.promise("S4-021", "S4-022", "S4-023", "S4-024", "S4-025")
def test_the_documents_example_follows_from_its_group():
    """Mean and std are those of the group's rewards; the mean of the batch is kept apart."""
    tracker = GRPOMetricsTracker()
    parts = {"format": 1.0, "score": 0.68, "meta": 0.85, "any name": 0.1}
    tracker.update_grpo_step(step=100, policy_loss=0.45, mean_reward=0.72, reward_components=parts, kl_divergence=0.012)
    tracker.update_group_rewards([0.9, 0.7, 0.5, 0.3])
    found = tracker.get_reward_distribution()
    assert found["reward_mean"] == pytest.approx(0.6)
    assert found["reward_std"] == pytest.approx(math.sqrt(0.05))
    assert found["mean_reward"] == 0.72
    assert [found["rank_distribution"][place]["mean"] for place in "0123"] == [0.9, 0.7, 0.5, 0.3]
    assert tracker.get_summary()["metrics"]["reward/any name"]["last"] == 0.1


@pytest.mark.promise("S4-025", "S4-026")
def test_groups_are_told_from_the_batch():
    """Spread within groups and between them are two figures, and groups of one reward are counted."""
    tracker = GRPOMetricsTracker()
    tracker.update_group_rewards([0.0, 1.0])
    tracker.update_group_rewards([1.0, 1.0])
    tracker.update_group_rewards([0.5, 0.5, None, math.nan])
    found = tracker.get_reward_distribution()
    assert found["within_group_std"] == pytest.approx(0.5 / 3)
    assert found["across_group_std"] == pytest.approx(math.sqrt(((0 - 1 / 6) ** 2 + (1 / 3) ** 2 + (1 / 6) ** 2) / 3))
    assert (found["zero_variance_groups"], found["zero_variance_ratio"]) == (2, pytest.approx(2 / 3))
    assert (found["groups"], found["rewards"], found["invalid"]) == (3, 6, 2)
    assert [group["zero_variance"] for group in tracker.get_groups()] == [False, True, True]


def test_nothing_yet_is_none():
    """Without a group every figure is None or 0, and nothing divides by zero."""
    found = GRPOMetricsTracker().get_reward_distribution()
    assert (found["reward_mean"], found["zero_variance_ratio"], found["groups"]) == (None, None, 0)
    assert GRPOMetricsTracker().component_shares() == {}


@given(st.lists(st.lists(st.floats() | st.none() | st.text(max_size=2), max_size=5), max_size=5))
def test_no_reward_raises(groups):
    """Whatever a group holds, nothing is raised and every answer is counted once."""
    tracker = GRPOMetricsTracker()
    for group in groups:
        tracker.update_group_rewards(group)
    found = tracker.get_reward_distribution()
    assert found["rewards"] + found["invalid"] == sum(map(len, groups))


def test_shares_of_components():
    """A component's share is its std over the sum of all."""
    tracker = GRPOMetricsTracker()
    for step in range(10):
        tracker.update_grpo_step(step=step, reward_components={"still": 1.0, "moves": float(step)})
    assert tracker.component_shares() == {"still": 0.0, "moves": 1.0}


def test_a_run_gets_the_names_that_diagnose_reads():
    """With a run, steps and groups are logged under the names that TRL uses; one that fails is said once."""
    run = Run()
    tracker = GRPOMetricsTracker(run=run)
    tracker.update_grpo_step(step=3, mean_reward=0.5, kl_divergence=0.1, reward_components={"a": 1.0}, entropy=2.0)
    tracker.update_group_rewards([1.0, 1.0])
    assert run.rows == [
        (3, {"reward": 0.5, "kl": 0.1, "entropy": 2.0, "rewards/a/mean": 1.0}),
        (3, {"frac_reward_zero_std": 1.0, "reward_std": 0.0, "group_reward": 1.0, "invalid_ratio": 0.0}),
    ]


def test_a_run_that_raises_is_said_once(capsys):
    """A run that cannot log does not break the training."""
    tracker = GRPOMetricsTracker(run=object())
    for step in range(3):
        tracker.update_grpo_step(step=step, mean_reward=0.5)
    assert capsys.readouterr().err.count("cannot log") == 1


@pytest.mark.promise("S4-026")
@pytest.mark.skipif(not LOGS.is_dir(), reason="../shared/data/grpo-rookworld is not here")
def test_groups_of_a_real_training():
    """In grpo-rookworld one prompt of four has equal answers at every step; its log says so for the first."""
    text = next(LOGS.glob("*1324.log")).read_text(encoding="utf-8")
    groups = re.findall(r"Scoring Prompt \d+ completions:\n((?:  Gen \d+: Reward= ?-?[\d.]+ .*\n)+)", text)
    tracker = GRPOMetricsTracker()
    for group in groups:
        tracker.update_group_rewards([float(reward) for reward in re.findall(r"Reward= ?(-?[\d.]+)", group)])
    found = tracker.get_reward_distribution()
    assert found["groups"] == 200
    assert (found["zero_variance_groups"], found["zero_variance_ratio"]) == (50, 0.25)
    assert found["across_group_std"] > 0.1
    assert "All 4 completions are IDENTICAL" in text
