"""What goes wrong with the numbers of a training, on losses and gradients that were made so."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analysis.diagnosis.evidence import Track
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


def test_a_loss_that_grows_and_grows_has_diverged() -> None:
    """It need not have been as high before as it is at last, with single values hundreds of times as high."""
    loss, chance = falling(), np.random.default_rng(0)
    loss[225:] = np.geomspace(2.5, 60.0, 75) * np.exp(chance.normal(0, 0.8, 75))
    loss[[250, 270, 285]] *= 100
    assert kinds(loss=loss)[0] == "divergence"


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


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_fell_at_the_very_beginning_has_learned(seed: int) -> None:
    """A fine-tuning falls by a third within three values, and is noise from then on."""
    chance = np.random.default_rng(seed)
    loss = 1.3 * (1 + 0.4 * np.exp(-np.arange(60) / 1.5) + chance.normal(0, 0.03, 60))
    assert kinds(loss=track(loss, every=10)) == []
    assert kinds(loss=track(1.3 * (1 + chance.normal(0, 0.03, 60)), every=10)) == ["plateau"]


def test_noise_that_would_hide_a_fall_says_nothing() -> None:
    """With 38 values that scatter by a tenth nobody sees whether the loss fell by a twentieth."""
    chance = np.random.default_rng(0)
    assert kinds(loss=track(1.3 * (1 + chance.normal(0, 0.1, 45)), every=10)) == []


@pytest.mark.parametrize("name", ["eval_accuracy", "val_loss", "test/f1"])
def test_a_model_whose_evaluation_goes_one_way_learns(name: str) -> None:
    """The training loss of a fine-tuning may stay in its noise while the evaluation gets better."""
    chance = np.random.default_rng(0)
    flat = 1.3 + chance.normal(0, 0.02, COUNT)
    better, chancy = track([0.957, 0.953, 0.946, 0.939, 0.922], every=60), track([0.1, 0.12, 0.09, 0.11, 0.1], every=60)
    assert kinds(loss=flat, **{name: better}) == []
    assert kinds(loss=flat, **{name: chancy}) == ["plateau"]


def test_a_piece_of_a_longer_training_is_no_plateau() -> None:
    """Its beginning, where it fell, is in another log."""
    flat = track(2.7 + np.random.default_rng(0).normal(0, 0.02, COUNT))
    assert kinds(loss=Track(flat.step + 29_000, flat.time, flat.value)) == []


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


@pytest.mark.parametrize("end", ["diverges", "not a number"])
def test_a_learning_rate_that_grew_until_the_loss_broke_is_named(end: str) -> None:
    """It was recorded, so it is told; a warm-up in which the loss breaks, and a constant rate, are not the cause."""
    loss = falling()
    loss[200:] = np.nan if end == "not a number" else loss[199] * np.geomspace(1, 300, 100)
    rate = 1e-3 * 1.03 ** np.arange(COUNT)
    found = findings(evidence(steps(), series={"loss": loss, "learning_rate": rate}))
    assert (found[0].kind, found[0].severity, found[0].evidence["cause"]) == ("learning_rate", "critical", "grows")
    assert "grew from 0.001 to" in found[0].text
    for fine in (np.full(COUNT, 1e-3), np.linspace(0, 1e-3, COUNT)):
        assert "learning_rate" not in kinds(loss=loss, learning_rate=fine)
    assert kinds(loss=falling(), learning_rate=rate) == []


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


def test_a_scaler_that_throws_steps_away_is_no_fault() -> None:
    """Gradients were infinite now and then, as a larger scale was tried, and the loss never was."""
    norm = np.full(300, 1.0)
    norm[[0, 1, 150]] = np.inf
    told = findings(evidence(steps(count=300), series={"loss": falling(), "grad_norm": norm}))
    assert [(one.kind, one.severity) for one in told if one.kind != "compute_bound"] == [("non_finite", "info")]
    lost = findings(
        evidence(steps(count=300), series={"loss": falling(), "grad_norm": np.where(norm > 1, norm, np.inf)})
    )
    assert (lost[0].kind, lost[0].severity) == ("non_finite", "critical")


def test_every_new_optimizer_begins_a_training_of_its_own() -> None:
    """Four folds one after another: the loss begins anew with each, which is neither a spike nor a divergence."""
    folds = np.concatenate([falling(100, seed) for seed in range(4)])
    made = [{"kind": "optimizer_made", "time": 1.7e9 + step, "step": step} for step in (99, 199, 299)]
    assert primary(findings(evidence(series={"loss": folds}))) == "loss_spike"
    assert findings(evidence(series={"loss": folds}, events=made)) == []
    worse = np.concatenate([falling(200), 30 * falling(200, 1)])
    assert findings(evidence(series={"loss": worse}, events=made[1:2])) == []


def test_cycles_of_the_learning_rate_that_are_meant() -> None:
    """Between a tenth, or a hundredth, of the highest and that; one that goes to nothing is stepped too often."""
    place = np.abs((np.arange(400) / 40) % 2 - 1)
    for lowest in (0.1, 0.01):
        rate = 1e-2 * (lowest + (1 - lowest) * place)
        assert findings(evidence(series={"loss": falling(400), "learning_rate": rate})) == []
    assert primary(findings(evidence(series={"loss": falling(400), "learning_rate": 1e-2 * place}))) == "learning_rate"


def test_a_loss_that_goes_back_to_where_it_began_has_lost_what_was_learned() -> None:
    """From 3.7 to 2.3 and back to chance, where it stays; one that goes on from there has not."""
    noise = np.random.default_rng(0).normal(0, 0.05, 450)
    loss = np.concatenate([2.3 + 1.4 * np.exp(-np.arange(150) / 30), np.linspace(2.3, 3.45, 50), np.full(250, 3.46)])
    assert kinds(loss=loss + noise) == ["divergence"]
    loss[300:] = 1.2 + 2.26 * np.exp(-np.arange(150) / 30)
    assert "divergence" not in kinds(loss=loss + noise)


def test_a_loss_that_comes_and_goes_has_not_diverged() -> None:
    """Of a model that learns its own targets it grows by orders of magnitude, falls again, and is never at rest."""
    chance = np.random.default_rng(1)
    level = np.repeat([1e-3, 1e-4, 1e-5, 1e-4, 5e-4, 0.09, 0.01, 0.03, 0.1, 0.02, 0.09, 0.06], 100)
    assert kinds(loss=level * np.exp(chance.normal(0, 1.0, len(level)))) == []


def test_a_gradient_that_is_as_large_as_its_loss_has_not_exploded() -> None:
    """Batches that are far off have large losses and large gradients; an explosion has no such reason."""
    loss, at = falling(), (100, 160, 220, 280)
    events = [
        {"kind": "exploding_gradient", "time": 1.7e9 + step, "step": step, "value": 20.0, "compared": 1.0, "rank": 0}
        for step in at
    ]
    assert "exploding_gradients" in kinds(events, loss=loss)
    for step in at:
        loss[step] *= 10
    assert "exploding_gradients" not in kinds(events, loss=loss)


def test_a_plateau_that_follows_from_missing_gradients_is_not_told_again() -> None:
    """The layers get no gradient: that nothing is learned is its effect."""
    flat = np.random.default_rng(0).normal(2.3, 0.02, 300)
    looks = [
        {"kind": "gradient_layers", "time": 1.7e9 + step, "step": step, "ratio": 1e-9, "layer": "0"}
        for step in range(0, 300, 30)
    ]
    assert kinds(loss=flat) == ["plateau"]
    assert kinds(looks, loss=flat) == ["vanishing_gradients"]


def test_a_norm_that_the_program_records_itself_explodes() -> None:
    """As it clips: two violent episodes suffice, of lesser ones it takes three; the decline at the start is none."""
    norm = 1.8 + np.random.default_rng(0).normal(0, 0.2, 300) + 60 * np.exp(-np.arange(300) / 3)
    assert kinds(loss=falling(), grad_norm=norm) == []
    violent, some = norm.copy(), norm.copy()
    violent[[120, 250]] = 900.0
    some[[90, 180]] = 40.0
    assert kinds(loss=falling(), grad_norm=violent) == ["exploding_gradients"]
    assert kinds(loss=falling(), grad_norm=some) == []
    some[260] = 40.0
    assert kinds(loss=falling(), grad_norm=some) == ["exploding_gradients"]
