"""The alerts in the watcher, stepped by hand: rules, actions, requests, and what is put into the outbox."""

from __future__ import annotations

import json
import os
import sys

import pytest

from stepscope.alerts.delivery.outbox import LineReader, entries, queue_path
from stepscope.alerts.evaluation.rule_engine import Engine
from stepscope.alerts.rules.builtin import rules
from stepscope.alerts.user_requests import ask
from stepscope.core import ring, status
from stepscope.core.places import ALERTING_SUFFIX, REQUEST_SUFFIX
from stepscope.store.sinks import SinkState
from stepscope.watcher.alerting import Alerting, explained, read_settings
from tests.alerts.rows import Rig
from tests.integration.processes import until

pytestmark = pytest.mark.processes

HIGH = {
    "name": "high_loss",
    "when": "loss > 5",
    "severity": "critical",
    "message": "loss is {loss}",
    "remedy": "stop it",
    "cooldown": 0,
}


class Silent:
    """A notifier that is never heard of."""

    def __init__(self, run):
        self.stdin = self.stdout = None
        self.returncode = None

    def poll(self):
        return None


def wire(stage):
    """Give a stage's watcher alerts, with a notifier that never speaks."""
    watcher = stage.watcher
    places = (stage.folder, watcher.node, stage.journal, watcher.streams, lambda: watcher.sampling)
    alerting = Alerting(*places, start=Silent, wall=lambda: stage.clock.wall / 1e9)
    watcher.alerting = watcher.feed = alerting


@pytest.fixture
def scene(stage):
    """A stage whose watcher evaluates rules; `begin` starts a trainer with alert settings."""
    wire(stage)

    def begin(**settings):
        rig = stage.trainer()
        [path] = stage.places.rings(str(stage.folder.path))
        given = {f"alerting.{key}": value for key, value in settings.items()}
        path.with_suffix(ALERTING_SUFFIX).write_text(json.dumps(given), encoding="utf-8")
        return rig, path

    stage.begin = begin
    return stage


def alerts(stage, kind="alert"):
    return list(stage.past().events(kind))


def queued(stage):
    reading = LineReader(queue_path(stage.folder.path, stage.watcher.node))
    return [(entry.event["rule"], entry.event["state"]) for entry in entries(reading.rows())]


def test_a_rule_fires_is_an_event_and_is_in_the_outbox(scene):
    """With the values that decided, and with the time of the step; it is resolved likewise."""
    rig, _ = scene.begin(rules=[HIGH], channels=["https://example.com"])
    rig.run.log({"loss": 1.0}, step=0)
    scene.tick(times=12)
    rig.run.log({"loss": 9.0}, step=1)
    scene.tick(times=12)
    [event] = alerts(scene)
    assert (event["rule"], event["state"], event["text"], event["step"]) == ("high_loss", "firing", "loss is 9", 1)
    rig.run.log({"loss": 1.0}, step=2)
    scene.tick(times=12)
    assert queued(scene) == [("high_loss", "firing"), ("high_loss", "resolved")]


def test_without_channels_there_is_no_outbox(scene):
    """Alerts are events of the run all the same."""
    rig, _ = scene.begin(rules=[HIGH])
    rig.run.log({"loss": 9.0})
    scene.tick(times=12)
    assert len(alerts(scene)) == 1
    assert not (scene.folder.path / "outbox").exists()


def test_alerts_can_be_off(scene):
    """Then nothing is evaluated."""
    rig, _ = scene.begin(enabled=False, rules=[HIGH], channels=["https://example.com"])
    rig.run.log({"loss": 9.0})
    scene.tick(times=12)
    assert alerts(scene) == []


def test_the_terminal_is_told_which_channel_is_refused_and_why(scene):
    """A channel that would not take a message is named with the reason, in the words that the trainer prints."""
    rig, path = scene.begin(rules=[HIGH], channels=["https://example.com"])
    rig.run.log({"loss": 0.1})
    scene.tick(times=20)
    alerting = scene.watcher.alerting
    why = "10.0.0.1 is refused: it is on this machine or a private network, and alerting.channels does not name it"
    alerting._notifying.reports.append({"channel": "webhook-1", "state": "unreachable", "why": why})
    scene.tick()
    assert scene.status(rig) == status.ALERTS_UNSENT
    told = status.text_of(status.ALERTS_UNSENT, path)
    assert told == f"cannot send alerts to webhook-1: {why}; see `stepscope alerts check`"
    assert status.text_of(status.ALERTS_UNSENT, path.with_name("other.ring")) == status.MESSAGES[status.ALERTS_UNSENT]


def test_what_is_wrong_with_the_settings_is_said_and_the_rest_goes_on(scene):
    """A wrong rule, a wrong channel, a wrong command: each a sentence, as an event and in the log."""
    wrong = {"rules": [HIGH, {"name": "x", "when": "los >"}], "channels": ["nothing"], "commands": [{"name": "a"}]}
    rig, _ = scene.begin(**wrong)
    rig.run.log({"loss": 9.0})
    scene.tick(times=12)
    assert len(alerts(scene, "alerting")) == 3
    assert len(alerts(scene)) == 1


def test_a_damaged_settings_file_costs_the_alerts_and_nothing_else(scene):
    """The rows are recorded, and the log says why there are no alerts."""
    rig, path = scene.begin()
    path.with_suffix(ALERTING_SUFFIX).write_bytes(b"{")
    rig.run.log({"loss": 9.0})
    scene.tick(times=12)
    assert scene.past().series("loss").value.tolist() == [9.0]
    assert "cannot evaluate alerts" in (scene.folder.path / "watcher.log").read_text()
    with pytest.raises(ValueError, match="Expecting"):
        read_settings(path.with_suffix(ALERTING_SUFFIX))


def test_actions_of_a_rule(scene):
    """A flag file for a checkpoint, should_stop, a profile, faster samples; each is an event."""
    actions = ["checkpoint", "stop", {"profile": {"steps": 7}}, {"sample": {"interval": 0.1, "seconds": 5}}]
    rig, path = scene.begin(rules=[{**HIGH, "actions": actions}])
    assert not rig.run.should_stop
    rig.run.log({"loss": 9.0}, step=3)
    scene.tick(times=12)
    flag = json.loads((scene.folder.path / "checkpoint-requested.json").read_bytes())
    assert (flag["rule"], flag["step"]) == ("high_loss", 3)
    assert rig.reader.words()[ring.WORD_STOP] == 1
    assert rig.run.should_stop
    assert json.loads(path.with_suffix(REQUEST_SUFFIX).read_bytes())["profile"] == {"steps": 7}
    assert [(event["action"], event.get("error")) for event in alerts(scene, "alert_action")] == [
        ("checkpoint", None),
        ("stop", None),
        ("profile", None),
        ("sample", None),
    ]


def test_a_command_of_the_configuration_runs_with_the_alert(scene):
    """Its words without a shell, the alert on its standard input; one that takes too long is ended."""
    out = scene.folder.path / "said"
    write = f"import sys, os; open({str(out)!r}, 'w').write(sys.stdin.read() + os.environ['STEPSCOPE_ALERT_RULE'])"
    commands = [
        {"name": "write", "command": [sys.executable, "-c", write]},
        {"name": "slow", "command": ["sleep", "600"], "seconds": 1},
    ]
    rules = [{**HIGH, "actions": [{"run": "write"}, {"run": "slow"}, {"run": "missing"}]}]
    rig, _ = scene.begin(rules=rules, commands=commands)
    rig.run.log({"loss": 9.0})

    def ended():
        scene.tick(times=5)
        return len(alerts(scene, "alert_action_ended")) == 2

    until(ended, "the end of both commands")
    said = out.read_text()
    assert json.loads(said[: said.rindex("}") + 1])["rule"] == "high_loss"
    assert said.endswith("high_loss")
    codes = {event["command"]: event["exit_code"] for event in alerts(scene, "alert_action_ended")}
    assert codes == {"write": 0, "slow": -9}
    errors = [event["error"] for event in alerts(scene, "alert_action") if "error" in event]
    assert errors == ["alerting.commands has no command 'missing'"]


def test_acknowledge_silence_and_test_from_outside(scene):
    """Each is answered by events; what is silenced is told to nobody, a test goes to its channel."""
    rig, _ = scene.begin(rules=[HIGH], channels=["https://example.com"])
    rig.run.log({"loss": 9.0}, step=0)
    scene.tick(times=12)
    now = scene.clock.wall / 1e9
    ask(scene.folder.path, {"do": "acknowledge", "alert": "high_loss", "by": "me"}, now)
    ask(scene.folder.path, {"do": "test", "channel": "webhook-1"}, now + 0.01)
    scene.tick(times=12)
    assert {event["state"] for event in alerts(scene)} == {"firing", "acknowledged"}
    ask(scene.folder.path, {"do": "silence", "rule": "high_*", "seconds": 864000}, scene.clock.wall / 1e9)
    scene.tick(times=12)
    rig.run.log({"loss": 1.0}, step=1)
    scene.tick(times=12)
    rig.run.log({"loss": 9.0}, step=2)
    scene.tick(times=12)
    assert "silenced" in {event["state"] for event in alerts(scene)}
    assert ("test", "firing") in queued(scene)
    assert queued(scene).count(("high_loss", "firing")) == 1
    assert [event["do"] for event in alerts(scene, "alert_request")] == ["acknowledge", "test", "silence"]


def test_alerts_of_the_trainings_own_rules_are_told_too(scene):
    """As TrainingMonitor.alert_system records them."""
    rig, _ = scene.begin(channels=["https://example.com"])
    fields = {"rule": "mine", "state": "firing", "severity": "warning", "text": "hm", "alert": "mine-1"}
    rig.run.own_event("alert", **fields)
    scene.tick(times=3)
    assert queued(scene) == [("mine", "firing")]
    [event] = alerts(scene)
    assert event["rule"] == "mine"


def test_a_watcher_that_is_started_again_does_not_tell_twice(scene):
    """What fired before goes on firing."""
    rig, _ = scene.begin(rules=[HIGH], channels=["https://example.com"])
    rig.run.log({"loss": 9.0}, step=0)
    scene.tick(times=12)
    for stream in scene.watcher.streams():
        stream.close()
    scene.watcher = scene.new_watcher()
    wire(scene)
    rig.run.log({"loss": 9.5}, step=1)
    scene.tick(times=12)
    assert queued(scene) == [("high_loss", "firing")]


def test_the_watcher_stays_until_people_were_told_but_not_for_ever(scene):
    """Ten minutes for messages that nobody takes; then the notifier goes on alone."""
    rig, _ = scene.begin(rules=[HIGH], channels=["https://example.com"])
    rig.run.log({"loss": 9.0}, step=0)
    scene.tick(times=12)
    scene.end(rig)
    assert scene.tick(times=3)
    assert scene.tick(seconds=60.0, times=5)
    assert not scene.tick(seconds=60.0, times=10)


def test_settings_are_read_without_following_links(tmp_path):
    """And are nothing where there is no file."""
    assert read_settings(tmp_path / "none") == {}
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        read_settings(tmp_path / "link")
    assert os.path.islink(tmp_path / "link")


def test_a_fault_of_the_rules_does_not_stop_the_recording(scene, monkeypatch):
    """It is written down; after many the alerts are off, and the rows still come."""
    rig, _ = scene.begin(rules=[HIGH])
    scene.tick()
    monkeypatch.setattr(Engine, "evaluate", lambda *_: 1 / 0)
    for step in range(150):
        rig.run.log({"loss": 9.0}, step=step)
        scene.tick(seconds=1.0)
    assert len(scene.past().series("loss").value) == 150
    texts = [event["text"] for event in alerts(scene, "alerting")]
    assert [text.partition(":")[0] for text in texts] == ["cannot evaluate alerts", texts[1]]
    assert texts[1].startswith("alerts are off after 100 faults")


@pytest.mark.parametrize(
    ("node", "why", "end"),
    [
        ("here", "the server answered 503", " behind: the server answered 503"),
        ("here", "", " behind"),
        ("there", "x", " behind"),
    ],
)
def test_a_sink_that_is_behind_says_why(stage, node, why, end):
    """The alert has the reason that this node's sender wrote, if it wrote one."""
    SinkState(node, "mlflow-0", name="mlflow", why=why).save(stage.folder)
    SinkState(node, "mlflow-1", name="mlflow-2", why="another").save(stage.folder)
    rig = Rig(*(rule for rule in rules() if rule.name == "sink_behind"))
    [change] = rig.machine(10, stepscope__sink__mlflow__behind_seconds=700.0)
    assert explained(change, stage.folder, "here").text.endswith(end)
