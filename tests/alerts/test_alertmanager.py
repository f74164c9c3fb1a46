"""What an Alertmanager gets: alerts that it can group, silence and resolve by their labels."""

from __future__ import annotations

import json

import pytest

from stepscope.alerts.delivery import alertmanager
from stepscope.alerts.delivery.alertmanager import LASTS, alerts_of
from stepscope.alerts.delivery.message import Message, MessageSubject, moment
from tests.alerts.servers import Hook, alert

NOW = 1_700_000_000.0
SUBJECT = MessageSubject("r1", "mnist", "first", "node")


@pytest.fixture
def hook():
    made = Hook()
    yield made
    made.close()


def test_only_the_latest_state_of_each_alert_is_posted(hook):
    """A message with two changes of one alert posts its last state, to the path of the API."""
    events = [alert(number=1), alert(number=1, severity="critical"), alert(number=2)]
    outcome = alertmanager.send(Message("id", SUBJECT, events), f"alertmanager+{hook.url}/", NOW)
    assert outcome.ok
    assert hook.requests[0]["path"] == "/api/v2/alerts"
    posted = json.loads(hook.requests[0]["body"])
    assert [one["labels"]["severity"] for one in posted] == ["critical", "warning"]
    ours = {"alertname": "loss_spike", "run": "r1", "project": "mnist", "node": "node", "alert": "loss_spike-1"}
    assert posted[0]["labels"] == {**ours, "rank": "0", "severity": "critical"}


def test_a_firing_alert_ends_by_itself_unless_we_resolve_it():
    """It has a start, an end far away, and the page if there is one."""
    subject = MessageSubject("r1", page="https://page.example/")
    [found] = alerts_of(alert(since=NOW - 60, rank=None), subject, NOW)
    assert (found["startsAt"], found["endsAt"]) == (moment(NOW - 60), moment(NOW + LASTS))
    assert found["generatorURL"] == "https://page.example/"
    assert "rank" not in found["labels"]
    assert "project" not in found["labels"]


def test_a_resolved_alert_is_resolved_in_every_severity():
    """The severity is a label, so an alert that escalated is known under two: all of them end now."""
    found = alerts_of(alert(state="resolved"), SUBJECT, NOW)
    assert [one["labels"]["severity"] for one in found] == ["info", "warning", "critical"]
    assert {one["endsAt"] for one in found} == {moment(NOW)}
    assert all("generatorURL" not in one for one in found)


def test_labels_of_a_rule_get_valid_names_and_replace_none_of_ours():
    """Other characters become underscores; a name that begins with a digit, or is one of ours, is left out."""
    labels = {"team a": "vision", "9lives": "x", "run": "stolen", "": "y"}
    [found] = alerts_of(alert(labels=labels), SUBJECT, NOW)
    assert found["labels"]["team_a"] == "vision"
    assert found["labels"]["run"] == "r1"
    assert not {"9lives", ""} & found["labels"].keys()
