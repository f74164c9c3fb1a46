"""`monitor.alert_system`: rules of the user's own code."""

from __future__ import annotations

import threading

import pytest

from stepscope.alerting import AlertSystem
from stepscope.monitor import TrainingMonitor
from tests.fakes import FakeRun


@pytest.fixture
def run():
    return FakeRun()


@pytest.fixture
def monitor(run):
    return TrainingMonitor(run=run)


@pytest.mark.promise("S1-033", "S1-034", "S1-036", "S1-068")
def test_the_documents_rule(monitor, run, capsys):
    """A function of the step's metrics fires, is printed, kept, and an event of the run; it is resolved likewise."""
    threshold = 2.0
    monitor.alert_system.add_alert_rule(
        name="High Loss Spike",
        condition=lambda metrics: metrics.loss > threshold,
        severity="warning",
        message="Loss spike detected: {loss:.2f}",
        cooldown_seconds=300,
    )
    for loss in (1.0, 9.5, 9.6, 1.0, 9.7):
        monitor.log_training_step(loss=loss)
    assert monitor.alert_system.flush(60.0)
    assert [(event["rule"], event["state"]) for event in run.events] == [
        ("High Loss Spike", "firing"),
        ("High Loss Spike", "resolved"),
    ]
    assert run.events[0]["text"] == "Loss spike detected: 9.50"
    assert run.events[0]["step"] == 1
    assert capsys.readouterr().err.count("ALERT warning: Loss spike detected: 9.50") == 1
    assert monitor.alert_system.active() == []


@pytest.mark.promise("S1-035", "S1-036")
def test_placeholders_that_are_no_metric_stay(monitor, run):
    """The document's second rule names one, and gives no cooldown."""
    monitor.alert_system.add_alert_rule(
        name="Target Loss Not Met",
        condition=lambda metrics: metrics.loss > 1,
        severity="warning",
        message="Loss is {loss:.2f}, target was {target_loss:.2f}",
    )
    monitor.log_training_step(loss=3.0)
    assert monitor.alert_system.flush(60.0)
    assert run.events[0]["text"].startswith("Loss is 3.00, target was ")


@pytest.mark.slow
@pytest.mark.promise("S1-037")
def test_a_rule_that_raises_hangs_or_returns_nonsense_stops_nothing(monitor, run, capsys):
    """It is off with a note; the others go on, and the training never waits."""
    release = threading.Event()
    system = monitor.alert_system
    system.add_alert_rule(name="raises", condition=lambda metrics: 1 / 0)
    system.add_alert_rule(name="hangs", condition=lambda metrics: release.wait(600))
    system.add_alert_rule(name="odd", condition=lambda metrics: "yes")
    system.add_alert_rule(name="good", condition=lambda metrics: metrics.loss > 1, message="high")
    for _ in range(20):  # none waits for what hangs: that goes on until it is released
        monitor.log_training_step(loss=3.0)
    assert system.flush(60.0)
    release.set()
    assert set(system.disabled()) == {"raises", "hangs", "odd"}
    assert [event["rule"] for event in run.events] == ["good"]
    assert capsys.readouterr().err.count(" is off: ") == 3


def test_wrong_rules_are_told_and_left_out(capsys):
    """Adding one never raises."""
    system = AlertSystem()
    assert not system.add_alert_rule(name="none")
    assert not system.add_alert_rule(name="bad", condition=lambda _: True, severity="terrible")
    assert system.rules() == []
    assert "there is no severity 'terrible'" in capsys.readouterr().err


@pytest.mark.promise("S1-011")
def test_alerts_can_be_switched_off(run):
    """As the document's enable_alerts says."""
    monitor = TrainingMonitor({"enable_alerts": False}, run=run)
    monitor.alert_system.add_alert_rule(name="x", condition=lambda metrics: True)
    monitor.log_training_step(loss=3.0)
    assert monitor.alert_system.flush(60.0)
    assert run.events == []


def test_custom_metrics_and_another_alert_system(monitor):
    """Rules see custom metrics by attribute; what is put in its place is asked instead."""
    monitor.alert_system.add_alert_rule(name="slow", condition=lambda metrics: metrics.tokens_per_second < 10)
    monitor.log_training_step(loss=1.0, custom_metrics={"tokens_per_second": 5.0})
    assert monitor.alert_system.flush(60.0)
    assert [row["rule"] for row in monitor.alert_system.active()] == ["slow"]
    seen = []
    monitor.alert_system = type("Other", (), {"check": staticmethod(seen.append)})()
    monitor.log_training_step(loss=2.0)
    assert [metrics.loss for metrics in seen] == [2.0]
