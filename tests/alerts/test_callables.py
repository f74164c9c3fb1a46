"""Rules of the user's own code: whatever it does, the training goes on."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

import numpy as np
import pytest

from stepscope.alerts.rules.callables import CallableRules
from stepscope.core.errors import UsageError


@pytest.fixture
def rules():
    """Rules with a patient clock, and what they noted."""
    notes: list[str] = []
    made = CallableRules(note=notes.append, seconds=5.0)
    made.notes = notes
    yield made
    made.close()


@dataclass
class Metrics:
    """What a program may hand over."""

    loss: float
    step: int = 3


@pytest.mark.promise("S1-033", "S1-034", "S1-036", "S1-068")
def test_a_function_of_the_metrics(rules):
    """A rule is a name, a condition on attributes, a severity and a message; the cooldown may be left out."""
    rules.add(name="high", condition=lambda m: m.loss > 10, severity="critical", message="loss is {loss:.1f}")
    assert rules.check(Metrics(1.0), now=0.0) == []
    (told,) = rules.check(Metrics(11.0), now=1.0)
    assert (told.rule, told.severity, told.text, told.step) == ("high", "critical", "loss is 11.0", 3)
    assert rules.check({"loss": 12.0}, now=2.0) == []
    assert [change.state for change in rules.check({"loss": 1.0}, now=3.0)] == ["resolved"]
    assert len(rules.check({"loss": 11.0}, now=4.0)) == 1


def test_the_cooldown_holds_back(rules):
    """With a cooldown the same rule is not told again before it is over."""
    rules.add("high", lambda m: m["loss"] > 10, cooldown_seconds=60)
    told = [
        len([each for each in rules.check({"loss": loss}, now=at) if each.state == "firing"])
        for at, loss in [(0, 11), (1, 1), (2, 11), (3, 1), (61, 11)]
    ]
    assert told == [1, 0, 0, 0, 1]


@pytest.mark.promise("S1-037")
def test_one_that_raises_stops_nothing(rules):
    """A condition that raises three times is off, with one note; the others go on."""
    rules.add("bad", lambda m: m.nothing > 1)
    rules.add("exits", lambda _: sys.exit(3))
    rules.add("good", lambda m: m.loss > 10)
    told = [rules.check({"loss": 11.0}, now=float(at)) for at in range(5)]
    assert [change.rule for each in told for change in each] == ["good"]
    assert set(rules.disabled()) == {"bad", "exits"}
    assert len(rules.notes) == 2
    assert "AttributeError" in rules.notes[0]


def test_one_that_hangs_is_left_behind():
    """A condition that does not return three times is off, with one note; nobody waits for it, and the others go on."""
    notes: list[str] = []
    rules = CallableRules(note=notes.append, seconds=0.2)
    stuck = threading.Event()
    rules.add("hangs", lambda _: stuck.wait(600))
    rules.add("good", lambda m: m.loss > 10)
    told = [change.rule for _ in range(4) for change in rules.check({"loss": 11.0})]
    assert told == ["good"]
    assert "did not return" in rules.disabled()["hangs"]
    assert len(notes) == 1
    stuck.set()
    rules.close()


@pytest.mark.parametrize("answer", [None, "yes", [1], object(), float("nan"), 2])
def test_nonsense_is_no_truth(rules, answer):
    """What is neither true nor false turns the rule off."""
    rules.add("odd", lambda _: answer)
    for _ in range(3):
        assert rules.check({"loss": 1.0}) == []
    assert "neither true nor false" in rules.disabled()["odd"]


def test_numpys_truth_is_one(rules):
    """A comparison of numpy numbers is a truth."""
    rules.add("numpy", lambda m: np.float64(m.loss) > 1)
    assert len(rules.check({"loss": 2.0})) == 1


def test_strange_metrics(rules):
    """Objects with slots, without attributes, and values that are no numbers are taken as they are."""
    rules.add("any", lambda _: True, message="{x} {y}")

    class Slotted:
        __slots__ = ("_hidden", "x")

    slotted = Slotted()
    slotted.x = 5
    (told,) = rules.check(slotted)
    assert told.text == "5 {y}"
    assert rules.check(7) == []


def test_a_rule_that_is_none_is_refused(rules):
    """What cannot be called, and a severity that is none, are mistakes of the program."""
    with pytest.raises(UsageError, match="cannot be called"):
        rules.add("a", 5)
    with pytest.raises(UsageError, match="no severity"):
        rules.add("a", lambda _: True, severity="loud")


def test_a_rule_that_adds_rules_does_not_block(rules):
    """A condition that checks the rules again gets nothing and hangs nothing."""
    rules.add("again", lambda m: bool(rules.check(m)))
    assert rules.check({"loss": 1.0}) == []
    assert rules.disabled() == {}
