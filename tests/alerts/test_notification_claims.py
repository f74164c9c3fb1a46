"""Of several nodes that see the same cause one tells, and none is silent for want of another."""

from __future__ import annotations

import pytest

from stepscope.alerts.evaluation.notification_claims import NEAR_STEPS, NotificationClaims
from stepscope.alerts.evaluation.state import Transition
from stepscope.alerts.rules.rule import Rule

RULES = [Rule("spike", detect="spike", over="mean"), Rule("hot", when="x > 1"), Rule("gpu_lost", event=("gpu_lost",))]


def change(rule="spike", state="firing", step=100, rank=None, alert="a", previous="", time=5000.0):
    """Return a change of an alert."""
    return Transition(alert, rule, state, "warning", "", "", {}, {}, rank, step, time, key="loss", previous=previous)


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run with two nodes."""
    for name in ("nodes", "claims"):
        (tmp_path / name).mkdir()
    for node in ("one", "two"):
        (tmp_path / "nodes" / f"{node}-0.json").touch()
    return tmp_path


def told(claims, *changes):
    """Return which changes people hear of."""
    return [each.notifies for each in claims.claim(changes, RULES)]


def test_the_first_tells(run):
    """The other writes it down and is quiet, also a few steps later, and when it resolves."""
    one, two = NotificationClaims(run, "one"), NotificationClaims(run, "two")
    assert told(one, change()) == [True]
    assert told(two, change(step=101, alert="b")) == [False]
    assert told(two, change(state="resolved", previous="firing", alert="b")) == [False]
    assert told(one, change(state="resolved", previous="firing")) == [True]
    assert not list((run / "claims").glob(".*"))


def test_another_occurrence_is_told_again(run):
    """By whoever sees it first."""
    one, two = NotificationClaims(run, "one"), NotificationClaims(run, "two")
    told(one, change())
    assert told(two, change(step=100 + 3 * NEAR_STEPS, alert="c")) == [True]
    assert told(one, change(step=101 + 3 * NEAR_STEPS, alert="d")) == [False]


def test_near_steps_are_one_cause_across_a_boundary(run):
    """Also where one node is in the next stretch of steps."""
    one, two = NotificationClaims(run, "one"), NotificationClaims(run, "two")
    assert told(one, change(step=NEAR_STEPS - 1)) == [True]
    assert told(two, change(step=NEAR_STEPS, alert="b")) == [False]


def test_what_is_a_nodes_own_is_always_told(run):
    """A GPU and a rank that is too hot belong to one node."""
    one, two = NotificationClaims(run, "one"), NotificationClaims(run, "two")
    for claims in (one, two):
        assert told(claims, change("hot"), change("gpu_lost", rank=3)) == [True, True]
    assert not list((run / "claims").iterdir())


def test_a_job_that_dies_on_all_nodes_is_told_once(run):
    """The node of the first end tells of its ranks, a later attempt and a much later end are told again."""
    one, two = NotificationClaims(run, "one"), NotificationClaims(run, "two")
    assert told(one, change("death", rank=3), change("death", rank=1, alert="b")) == [True, True]
    later = change("death", rank=9, step=900, alert="c", time=5400.0)
    assert told(two, later, change("preempted", rank=9, alert="d")) == [False, True]
    assert told(two, change("death", rank=9, alert="e", time=9000.0)) == [True]
    (run / "nodes" / "two-1.json").touch()
    assert told(two, change("death", rank=8, alert="f")) == [True]


def test_a_watcher_that_comes_again_still_tells(run):
    """Its own claim is no reason to be silent: told twice is better than never."""
    assert told(NotificationClaims(run, "one"), change()) == [True]
    assert told(NotificationClaims(run, "one"), change()) == [True]


def test_one_node_claims_nothing(run):
    """Most runs have one."""
    (run / "nodes" / "two-0.json").unlink()
    assert told(NotificationClaims(run, "one"), change()) == [True]
    assert not list((run / "claims").iterdir())


def test_a_disk_that_refuses_silences_nobody(tmp_path):
    """Without a folder to ask each one tells."""
    assert told(NotificationClaims(tmp_path / "gone", "one"), change()) == [True]
