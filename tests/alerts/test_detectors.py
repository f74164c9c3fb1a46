"""Detectors that rules can name besides those of the built-in rules."""

from __future__ import annotations

from tests.alerts.rows import Rig, noise


def told_by(rule, *batches):
    """Return the steps at which a rule fires on a series that comes in batches."""
    rig = Rig({"name": "it", "metric": "reward", "cooldown": 0, **rule})
    return [change.step for batch in batches for change in rig.values("reward", *batch) if change.state == "firing"]


def test_an_anomaly_is_told_where_it_is():
    """A value that the series has not had before is told with its step."""
    assert told_by({"detect": "anomaly"}, noise(600, 5, 0.1), [*noise(50, 5, 0.1, 1), 12.0, *noise(49, 5, 0.1, 2)]) == [
        650
    ]
    assert told_by({"detect": "anomaly"}, noise(600, 5, 0.1), noise(100, 5, 0.1, 1)) == []


def test_an_anomaly_that_goes_on_is_told_once():
    """A new level is told when it is reached, and not at every look; what keeps coming back is no news."""
    batches = [noise(600, 5, 0.1), *[noise(20, 9, 0.1, seed) for seed in range(10)]]
    assert len(told_by({"detect": "anomaly"}, *batches)) == 1
    bursts = [part for seed in range(8) for part in (noise(400, 5, 0.1, seed), [9.0, 9.1, *noise(98, 5, 0.1, seed)])]
    assert len(told_by({"detect": "anomaly"}, *bursts)) <= 3


def test_a_lasting_change_is_told_once():
    """A change of level is told after some points, and not again."""
    batches = [noise(200, 5, 0.05), *[noise(40, 6, 0.05, seed) for seed in range(5)]]
    assert len(told_by({"detect": "change"}, *batches)) == 1
    assert told_by({"detect": "change", "options": {"share": 0.5}}, *batches) == []


def test_spikes_one_after_another_are_apart():
    """Two spikes in one batch are two alerts; a third alike is known as noise with a heavy tail, in any batches."""
    values = noise(400, 3, 0.01)
    for at in (200, 260, 399):
        values[at] = values[at] + 3
    rule = {"detect": "spike"}
    assert told_by(rule, values[:100], values[100:]) == told_by(rule, *[[each] for each in values]) == [200, 260]
