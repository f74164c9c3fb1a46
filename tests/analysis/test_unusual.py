from __future__ import annotations

import json
import math

import numpy as np
import pytest

from stepscope.analysis.unusual import is_loss, unusual

STEPS = np.arange(0, 4000, 10)
NOISE = np.random.default_rng(0).normal(0, 0.02, 400)


@pytest.mark.promise("S1-067")
def test_spike_is_told_with_step_and_remedy():
    """A loss that was thrown back is a warning, or critical while it stays, with step, numbers and what to do."""
    loss = 2.5 + NOISE
    loss[200:205] += 2
    (found,) = unusual("train_loss", STEPS, loss)
    assert (found.kind, found.severity, found.evidence["step"]) == ("loss_spike", "warning", 2000)
    assert "step 2000" in found.text
    assert found.remedy
    loss[200:] = 4.5 + NOISE[200:]
    assert unusual("loss", STEPS, loss)[0].severity == "critical"


def test_loss_that_is_no_number_is_critical():
    """NaN is told once, with its first step and how often."""
    loss = 2.5 + NOISE
    loss[[30, 31]] = math.nan, math.inf
    (found,) = unusual("loss", STEPS, loss)
    assert (found.kind, found.severity) == ("nonfinite_loss", "critical")
    assert found.evidence == {"step": 300, "points": 2}


def test_changes_and_anomalies_of_other_metrics_are_told_in_order():
    """A step time that got slower for good, and a single long step, are told in order of their steps."""
    seconds = 0.2 + 0.05 * NOISE
    seconds[300:] *= 1.5
    seconds[100] = 3.0
    found = unusual("step_seconds", STEPS, seconds)
    assert ("anomaly", 1000) in [(each.kind, each.evidence["step"]) for each in found]
    assert ("change_point", 3000) in [(each.kind, each.evidence["step"]) for each in found]
    assert [each.evidence["step"] for each in found] == sorted(each.evidence["step"] for each in found)
    json.dumps([each.facts() for each in found])


def test_small_changes_are_not_told():
    """A change that is sure but small is no news."""
    seconds = 0.2 + 0.0005 * NOISE
    seconds[200:] += 0.001
    assert unusual("step_seconds", STEPS, seconds) == []


@pytest.mark.parametrize("name", ["loss", "x", "step_seconds"])
def test_nothing_to_tell_of_nothing(name):
    """Empty, short and constant series have no finding."""
    for values in ([], [1.0], [2.0] * 300):
        assert unusual(name, np.arange(len(values)), values) == []


def test_names_of_losses():
    """A loss is known by the last part of its name."""
    assert all(is_loss(name) for name in ("loss", "train_loss", "val/loss"))
    assert not any(is_loss(name) for name in ("loss_scale", "step_seconds", "glossy", ""))


def test_a_rise_beyond_tenfold_is_told_in_times():
    """No sentence has a percentage of many digits; beyond all measure the two numbers say enough."""
    for top, told in ((10.0, "to 10, by 30"), (150.0, "to 150, 60 times as high"), (2.5e20, "to 2.5e+20, and")):
        loss = 2.5 + NOISE
        loss[200:205] = top
        (found,) = unusual("loss", STEPS, loss)
        assert told in found.text
