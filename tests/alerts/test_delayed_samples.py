"""Samples of the machine wait as long as the rules that read them allow, and are judged by their own times."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.alerts.evaluation.new_points import LONGEST, DelayedSamples, patience_of
from stepscope.alerts.evaluation.rule_engine import Engine
from stepscope.alerts.rules.builtin import rules
from stepscope.alerts.rules.expression import POINTS, TIME, RuleWindow
from stepscope.alerts.rules.rule import Rule

SECOND = 10**9


@pytest.mark.parametrize(
    ("rule", "seconds"),
    [
        (Rule("a", when="x > 1"), 0.0),
        (Rule("a", when="x > 1", lasting=RuleWindow(60, TIME)), LONGEST),
        (Rule("a", when="x > 1", lasting=RuleWindow(20, TIME)), 2.0),
        (Rule("a", when="x > 1", lasting=RuleWindow(3, POINTS)), 0.0),
        (Rule("a", when="mean(x, 30s) > 1"), 3.0),
        (Rule("a", when="mean(x, 30s) > 1 and max(y, 10s) > 2"), 1.0),
        (Rule("a", when="mean(x, 60s) > 1 and y > 2"), 0.0),
        (Rule("a", when="mean(x, 100) > 1"), 0.0),
        (Rule("a", when="mean(x, 300s) > 1", lasting=RuleWindow(20, TIME)), LONGEST),
        (Rule("a", detect="leak"), LONGEST),
        (Rule("a", detect="spike"), 0.0),
    ],
)
def test_a_rule_waits_a_tenth_of_what_it_looks_at(rule, seconds):
    """Who judges single values is asked at once."""
    assert patience_of(rule) == pytest.approx(seconds)


def test_training_never_waits():
    """Rules on what the training logs are asked at once, those on minutes of the machine are not."""
    waiting = {rule.name for rule in rules() if not rule.event and patience_of(rule) > 0}
    assert waiting.isdisjoint({"loss_spike", "not_finite", "loss_divergence", "gradient_exploding", "data_starvation"})
    assert "gpu_underused" in waiting


def held(patience=5.0):
    return DelayedSamples(lambda _, name: name != "unwanted", lambda name: 0.0 if name == "urgent" else patience)


def test_samples_wait_and_come_together():
    """What waits comes with every one of its times; what nobody wants does not come."""
    samples = held()
    for second in range(5):
        samples.add(-1, {"a": float(second), "unwanted": 1.0}, 100.0 + second)
        found = samples.due(100.0 + second)
        assert not found
    (part,) = samples.due(105.0)[-1, "a"]
    assert part.time.tolist() == [100.0, 101.0, 102.0, 103.0, 104.0]
    assert part.value.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert np.isnan(part.step).all()
    assert not samples.due(200.0)


def test_the_urgent_goes_ahead():
    """A metric that a rule wants at once does not wait for its neighbours of the same row."""
    samples = held()
    samples.add(-1, {"a": 1.0, "urgent": 2.0}, 100.0)
    assert list(samples.due(100.0)) == [(-1, "urgent")]
    assert list(samples.due(100.0, every=True)) == [(-1, "a")]


def test_instances_stay_together():
    """Rows of the same moments have one axis, also if one of them has a rare value that nobody wants."""
    samples = held()
    for second in range(3):
        samples.add(-1, {"gpu/0/a": 1.0}, float(second))
        samples.add(-1, {"gpu/1/a": 1.0, **({"unwanted": 1.0} if second == 1 else {})}, float(second))
    found = samples.due(10.0)
    assert {part.axis for parts in found.values() for part in parts} == {found[-1, "gpu/0/a"][0].axis}


def test_an_alert_has_the_time_of_its_sample():
    """A rule that waits fires by the moment at which its condition had lasted, not by that of the evaluation."""
    rule = Rule("hot", when="x > 1", lasting=RuleWindow(30, TIME))
    waiting, asked = Engine([rule]), []
    for second in range(60):
        waiting.sample(-1, {"x": 2.0 if second >= 10 else 0.0}, second * SECOND)
        asked += [(second, change) for change in waiting.evaluate(second * SECOND)]
    ((second, fired),) = asked
    assert (fired.state, fired.time) == ("firing", 40.0)
    assert 40 <= second <= 44


def test_nothing_is_left_behind():
    """When the run is over what still waited is judged, and what still holds is told so."""
    engine = Engine([Rule("hot", when="x > 1", lasting=RuleWindow(30, TIME))])
    for second in range(32):
        engine.sample(-1, {"x": 2.0}, second * SECOND)
    told = engine.close(31 * SECOND)
    assert [change.state for change in told] == ["firing", "firing"]
    assert told[1].text.endswith("; still so at the end")
