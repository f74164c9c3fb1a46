"""What goes wrong with the numbers of a training, on losses and gradients that were made so."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.diagnosis.verdict import findings, primary
from tests.analysis.diagnosis_rig import evidence, falling, steps, track

COUNT = 300


def kinds(events: list[dict[str, object]] | None = None, **series: object) -> list[str]:
    """Return the kinds of what is found in a run with these series."""
    found = findings(evidence(steps(), series=series, events=events or []))
    return [one.kind for one in found if one.severity != "info"]


def test_a_loss_that_falls_and_stays_is_healthy() -> None:
    """A training that has converged is on no plateau."""
    assert kinds(loss=falling()) == []
    assert kinds(loss=falling(2000)) == []


def test_a_loss_that_rises_for_good_has_diverged() -> None:
    """It is told from the step on which it left its level."""
    loss = falling()
    loss[200:] += np.linspace(0, 20, 100)
    found = findings(evidence(steps(), series={"loss": loss}))
    assert primary(found) == "divergence"
    assert 195 <= found[0].evidence["step"] <= 240
    assert found[0].severity == "critical"


def test_the_first_number_that_is_none_is_named() -> None:
    """NaN in the gradients comes before NaN in the loss."""
    loss, norm = falling(), np.full(COUNT, 1.0)
    loss[151:], norm[150:] = np.nan, np.inf
    found = findings(evidence(steps(), series={"loss": loss, "grad_norm": norm}))
    assert primary(found) == "non_finite"
    assert (found[0].evidence["first"], found[0].evidence["step"]) == ("grad_norm", 150)


def test_a_spike_is_told_with_its_step() -> None:
    """Whether the loss came back is said, too."""
    loss = falling()
    loss[220:224] += 3.0
    found = findings(evidence(steps(), series={"loss": loss}))
    assert (primary(found), found[0].evidence["step"]) == ("loss_spike", 220)
    assert "came back" in found[0].text


def test_a_spike_is_seen_in_ten_values() -> None:
    """An excerpt of a log is enough for a jump that nobody needs statistics for."""
    assert kinds(loss=[2.776, 2.773, 2.768, 7.34, 7.71, 7.5, 7.1, 6.85, 2.72]) == ["loss_spike"]
    assert kinds(loss=[12.5, 32.8, 15.2, 11.0, 9.4, 8.6, 8.4]) == []


def test_a_loss_that_never_fell_is_a_plateau_and_comes_after_what_costs_time() -> None:
    """What may be meant to be so is never the first thing to say."""
    chance = np.random.default_rng(0)
    flat = np.log(10) + chance.normal(0, 0.02, COUNT)
    assert kinds(loss=flat) == ["plateau"]
    slow = {"data": 0.1, "forward": 0.01, "backward": 0.01, "optimizer": 0.001, "other": 0.001}
    assert primary(findings(evidence(steps(slow), series={"loss": flat}))) == "input_bound"
    slowly = flat - np.linspace(0, 0.2, COUNT)
    assert kinds(loss=slowly) == []


def test_held_out_data_that_gets_worse_is_overfitting() -> None:
    """The best evaluation is named: that is where to stop."""
    held = np.concatenate([np.linspace(2.0, 1.0, 6), np.linspace(1.05, 2.0, 14)])
    found = findings(evidence(steps(), series={"loss": falling(), "evaluation/loss": track(held, every=15)}))
    assert (primary(found), found[0].evidence["step"]) == ("overfitting", 75)
    fine = track(np.concatenate([np.linspace(2.0, 1.0, 6), np.full(14, 1.02)]), every=15)
    assert kinds(loss=falling(), val_loss=fine) == []


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (np.full(COUNT, 1e-3), []),
        (1e-3 * 0.5 * (1 + np.cos(np.linspace(0, np.pi, COUNT))), []),
        (np.minimum(np.arange(COUNT) / 50, 1) * 1e-3, []),
        (1e-3 * 0.9 ** np.arange(COUNT), ["learning_rate"]),
        (1e-3 * 0.5 * (1 + np.cos(np.arange(COUNT) / 10 * np.pi)), ["learning_rate"]),
        (np.zeros(COUNT), ["learning_rate"]),
    ],
    ids=["constant", "cosine", "warm-up", "decays with every batch", "swings", "zero"],
)
def test_a_schedule_is_judged_by_what_it_leaves(rate: np.ndarray, expected: list[str]) -> None:
    """Warm-up and one cosine are how it is done; nothing left, or a swing with every batch, is not."""
    assert kinds(loss=falling(), learning_rate=rate) == expected


def test_a_learning_rate_that_jumps_before_the_loss_breaks_is_its_cause() -> None:
    """What came first is told first."""
    rate, loss = np.full(COUNT, 0.02), falling()
    rate[150:], loss[153:] = 1.5, np.nan
    assert kinds(loss=loss, learning_rate=rate)[:2] == ["learning_rate", "non_finite"]


def test_gradients_that_outgrow_the_loss_are_the_cause_of_a_divergence() -> None:
    """Those that grow as the root of the loss are its effect."""
    loss = falling()
    loss[200:] *= np.geomspace(1, 300, 100)
    told = [{"kind": "exploding_gradient", "step": 210, "name": "grad_norm", "cause": "", "time": 1.7e9, "rank": 0}]
    for power, expected in ((0.5, "divergence"), (1.3, "exploding_gradients")):
        norm = np.concatenate([np.full(200, 1.0), np.geomspace(1, 300, 100) ** power])
        assert kinds(told, loss=loss, grad_norm=norm)[0] == expected


def test_one_explosion_is_a_hard_batch_and_three_are_a_finding() -> None:
    """Clipping deals with the first."""
    told = {"kind": "exploding_gradient", "name": "grad_norm", "cause": "12 times its median", "time": 1.7e9, "rank": 0}
    assert kinds([{**told, "step": 20}], loss=falling()) == []
    assert kinds([{**told, "step": at} for at in (20, 60, 90)], loss=falling()) == ["exploding_gradients"]


def test_layers_without_gradient_are_told_though_the_norm_of_all_is_fine() -> None:
    """A look at all weights shows what the norm hides; a modest ratio is healthy."""
    look = {"kind": "gradient_layers", "weights": 20, "zero": 0, "ratio": 1e-12, "layer": "0.weight", "time": 1.7e9}
    assert kinds([look] * 4, loss=falling()) == ["vanishing_gradients"]
    assert kinds([{**look, "ratio": 0.01}] * 4, loss=falling()) == []
    assert kinds([{**look, "ratio": 0.1, "zero": 15}] * 4, loss=falling()) == ["dead_gradients"]
    assert kinds([{"kind": "dead_gradient", "step": 9, "time": 1.7e9}], loss=falling()) == ["dead_gradients"]
