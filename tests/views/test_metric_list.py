"""Which metrics a first look at a run shows."""

from __future__ import annotations

import numpy as np
import pytest

from bench.drawn_runs import ABSENT, Drawn, write
from stepscope.store.layout import RunFolder
from stepscope.store.reader import Past
from stepscope.views.metric_list import CANDIDATES, beside, candidates
from stepscope.views.run_head import run_head

STEPS = 300
AT = np.arange(STEPS)
FALLING = 3 * np.exp(-AT / 90) + 0.02 * np.sin(AT)


def shown(folder, **values):
    """Return what the head of a run with such metrics shows."""
    named = {name.replace("__", "/"): value for name, value in values.items()}
    return run_head(Past(RunFolder(write(folder / "p" / "run", Drawn("run", steps=STEPS, values=named)))))["important"]


def rarely(value):
    """Return a series that has a value every hundred steps only."""
    return np.where(AT % 100 == 0, value, ABSENT)


def test_the_own_metrics_that_move_come_before_the_machine(tmp_path):
    """What the user logged stands first, by its quality, and the step time behind it."""
    found = shown(tmp_path, step_seconds=0.1 + 0.01 * np.sin(AT), my_reward=np.cos(AT / 9), loss=FALLING)
    assert found == ["loss", "my_reward", "step_seconds"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("world_size", np.full(STEPS, 8.0)),
        ("epoch", np.floor(AT / 100)),
        ("tokens_seen", AT * 4096.0),
        ("examples_done", AT * 32.0 + np.sin(AT)),
        ("final_score", np.where(AT == STEPS - 1, 0.9, ABSENT)),
    ],
)
def test_what_shows_nothing_as_a_chart_is_left_out(tmp_path, name, value):
    """A constant, a counter and a single point have no chart."""
    assert shown(tmp_path, loss=FALLING, **{name: value}) == ["loss"]


def test_what_rises_by_learning_is_no_counter(tmp_path):
    """An accuracy that rises on a straight line, and a warm-up of the learning rate, are shown."""
    found = shown(tmp_path, accuracy=AT / STEPS, learning_rate=AT * 1e-6)
    assert found == ["accuracy", "learning_rate"]


def test_a_metric_that_is_not_finite_is_shown(tmp_path):
    """A loss of NaN from the first step on is the very thing to see."""
    assert shown(tmp_path, loss=np.full(STEPS, np.nan)) == ["loss"]


def test_validation_stands_beside_the_training_it_judges(tmp_path):
    """Each validation comes directly after its training, however it is spelled."""
    found = shown(
        tmp_path,
        train__loss=FALLING,
        train__acc=np.cos(AT / 50),
        val__loss=rarely(FALLING),
        val__acc=rarely(np.cos(AT / 50)),
        aux=np.sin(AT / 7),
    )
    assert found == ["train/loss", "val/loss", "train/acc", "val/acc", "aux"]
    assert beside(["loss", "acc", "eval_loss", "test-loss"]) == ["loss", "eval_loss", "test-loss", "acc"]


def test_a_run_of_very_many_metrics_is_looked_at_in_part():
    """Only so many metrics are read, and the step time is among them."""
    found = candidates({*(f"layer/{number}" for number in range(5000)), "step_seconds"}, ())
    assert len(found) == CANDIDATES
    assert "step_seconds" in found


def test_what_the_configuration_names_comes_first():
    """Metrics that the user asked for stand before all others."""
    assert candidates(["loss", "mine"], (), ("mine",)) == ["mine", "loss"]


def test_a_loss_that_is_not_finite_is_among_the_key_numbers(tmp_path):
    """The last loss is told as NaN where it is none, not left out."""
    values = {"loss": np.where(AT > 200, np.nan, FALLING)}
    head = run_head(Past(RunFolder(write(tmp_path / "p" / "run", Drawn("run", steps=STEPS, values=values)))))
    assert [(one["label"], one["text"]) for one in head["numbers"]][1] == ("loss", "NaN")


SAMPLED = ("cpu/usage_ratio", "gpu/0/memory_used_bytes")
SPELLED = ["accuracy", "cpu/usage_ratio", "grad_norm", "gpu/0/memory_used_bytes", "loss", "lr", "step_seconds", "zeta"]


@pytest.mark.promise("S0-075")
@pytest.mark.parametrize(
    ("word", "metric"),
    [
        ("training_loss", "loss"),
        ("gpu_memory", "gpu/0/memory_used_bytes"),
        ("cpu_usage", "cpu/usage_ratio"),
        ("training_speed", "step_seconds"),
        ("gradient_norms", "grad_norm"),
        ("learning_rate", "lr"),
        ("zeta", "zeta"),
    ],
)
def test_every_word_of_the_settings_puts_its_metric_first(word, metric):
    """Each word that `monitoring.metrics` may list brings what it means to the first place."""
    assert candidates(SPELLED, SAMPLED, (word,))[0] == metric
    assert metric in candidates(SPELLED, SAMPLED, ("loss", word))[:2]


def test_a_speed_is_told_in_samples_where_they_are_known():
    """Of the metrics that a word may mean the first that the run has is shown."""
    assert candidates([*SPELLED, "samples_per_second"], SAMPLED, ("training_speed",))[0] == "samples_per_second"
    assert candidates(["loss"], (), ("gpu_memory", "training_speed")) == ["loss"]
