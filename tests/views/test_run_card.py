"""The card of a run beside what a plain reading of its points gives."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.store.reader import Past
from stepscope.views.buckets import buckets_of
from stepscope.views.run_card import card, gpu_names, headline, left, spark
from tests.exporters.recorded import make_run, points_of, seal_points


@pytest.mark.parametrize("steps", [3, 500, 30_000])
def test_figures_are_those_of_every_point(tmp_path, steps):
    """However long the run is, and so however it is read, best, last, means and rates are those of all its points."""
    random = np.random.default_rng(steps)
    loss, seconds = random.normal(2, 0.5, steps), random.uniform(0.01, 0.02, steps)
    folder = make_run(tmp_path)
    metrics = {
        "loss": loss,
        "step_seconds": seconds,
        "samples": np.full(steps, 32.0),
        "epoch": np.arange(steps) / steps,
    }
    seal_points(folder, points_of(metrics))
    found = card(Past(folder))
    assert found["loss"] == {"name": "loss", "last": loss[-1], "best": loss.min()}
    assert found["step_seconds"] == pytest.approx(seconds.mean())
    assert found["samples_per_second"] == pytest.approx(32 * steps / seconds.sum())
    assert found["rate"] == pytest.approx(steps / seconds.sum())
    assert found["recent_rate"] == pytest.approx(1 / seconds[-max(2, steps // 5) :].mean(), rel=0.1)
    assert found["epoch"] == pytest.approx((steps - 1) / steps)
    assert len(found["spark"]) == min(steps, 40)


def test_the_last_attempt_counts(tmp_path):
    """A restart begins anew: best and last are those of the last attempt."""
    folder = make_run(tmp_path)
    seal_points(folder, points_of({"loss": [1.0, 0.5]}, attempt=0), 0)
    seal_points(folder, points_of({"loss": [3.0, 2.0]}, attempt=1, first=10), 1)
    assert card(Past(folder))["loss"] == {"name": "loss", "last": 2.0, "best": 2.0}


def test_nothing_is_none_and_never_zero(tmp_path):
    """What a run does not tell is None."""
    found = card(Past(make_run(tmp_path)))
    assert {key for key, value in found.items() if value is None} >= {"rate", "loss", "gpu", "left", "cost", "alert"}
    assert found["spark"] == []


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["val_loss", "loss"], "loss"),
        (["train_loss", "x"], "train_loss"),
        (["accuracy", "eval/accuracy"], "accuracy"),
        (["x", "y"], None),
        ([], None),
    ],
)
def test_what_a_run_is_judged_by(names, first):
    """The loss comes first, in any spelling, then other losses, then scores."""
    assert headline(names) == first


def test_a_score_is_best_when_it_is_highest(tmp_path):
    """Of accuracy the highest value is the best."""
    folder = make_run(tmp_path)
    seal_points(folder, points_of({"accuracy": [0.1, 0.9, 0.5]}))
    assert card(Past(folder))["loss"] == {"name": "accuracy", "last": 0.5, "best": 0.9}


def test_the_use_of_the_gpus():
    """The mean over GPUs if there is one, else each."""
    each = ["gpu/0/utilization_ratio", "gpu/1/utilization_ratio"]
    assert gpu_names([*each, "gpu/0/power_watts"]) == each
    assert gpu_names([*each, "gpu/mean_utilization_ratio"]) == ["gpu/mean_utilization_ratio"]


@pytest.mark.parametrize(
    ("step", "total", "rate", "seconds"),
    [(9, 100, 10.0, 9.0), (99, 100, 1.0, 0.0), (200, 100, 1.0, 0.0), (None, 100, 1.0, None), (1, None, 1.0, None)],
)
def test_the_time_left(step, total, rate, seconds):
    """Steps to come at the present speed; never below zero, unknown where anything is unknown."""
    assert left(step, total, rate) == seconds


def test_a_gap_in_the_small_curve(tmp_path):
    """A stretch without a finite value is None."""
    folder = make_run(tmp_path)
    seal_points(folder, points_of({"loss": [1.0, np.nan, 3.0]}))
    assert spark(buckets_of(Past(folder).series("loss"))) == [1.0, None, 3.0]
