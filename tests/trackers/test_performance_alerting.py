"""The documents' PerformanceAlerting, and RealTimeMonitor's checking and sending with it."""

from __future__ import annotations

import io
import threading

import pytest

from stepscope.alerting import PerformanceAlerting
from stepscope.monitor import RealTimeMonitor, TrainingMonitor
from tests.alerts.servers import MailServer
from tests.fakes import FakeRun
from tests.trackers.machines import Source, machine_of, wait_until

BASELINE = {"loss": 1.0, "gpu_memory": {}, "cpu_percent": 10.0, "training_speed": 100.0}


def types(current, baseline=BASELINE, **thresholds):
    alerting = PerformanceAlerting({})
    alerting.alert_thresholds.update(thresholds)
    return [alert["type"] for alert in alerting.check_alerts(current, baseline)]


@pytest.mark.promise("S0-047", "S0-048")
def test_it_is_made_as_in_the_document():
    """With a mail configuration, which is kept, and the document's thresholds."""
    config = {
        "from": "a@b.c",
        "to": "d@e.f",
        "smtp_server": "s",
        "smtp_port": 587,
        "username": "u",
        "password": "hunter2",
    }
    alerting = PerformanceAlerting(config)
    assert alerting.email_config == config
    expected = {"loss_increase": 0.1, "gpu_memory": 0.9, "cpu_usage": 0.95, "training_speed": 0.5}
    assert alerting.alert_thresholds == expected
    assert "hunter2" not in repr(alerting)


@pytest.mark.promise("S0-049", "S0-050", "S0-051", "S0-052", "S0-053")
def test_what_is_alarming_is_told_in_the_documents_words():
    """Each with type, message and severity."""
    current = {
        "loss": 1.25,
        "gpu_memory": {
            "gpu_0": {"memory_used": 950.0, "memory_total": 1000.0},
            "gpu_1": {"memory_used": 1, "memory_total": 9},
        },
        "cpu_percent": 99.0,
        "training_speed": 40.0,
    }
    assert PerformanceAlerting({}).check_alerts(current, BASELINE) == [
        {"type": "loss_increase", "message": "Training loss increased by 25.0%", "severity": "warning"},
        {"type": "gpu_memory", "message": "GPU gpu_0 memory usage is 95.0%", "severity": "warning"},
        {"type": "cpu_usage", "message": "CPU usage is 99.0%", "severity": "warning"},
        {"type": "training_speed", "message": "Training speed decreased by 60.0%", "severity": "warning"},
    ]
    assert PerformanceAlerting({}).check_alerts(BASELINE, BASELINE) == []


@pytest.mark.promise("S0-053")
@pytest.mark.parametrize(
    ("current", "baseline", "found"),
    [
        ({"training_speed": 49}, {"training_speed": 100}, True),
        ({"training_speed": 51}, {"training_speed": 100}, False),
        ({"samples_per_second": 0.0}, {"samples_per_second": 100}, True),
        ({"batch_time": 2.1}, {"batch_time": 1.0}, True),
        ({"batch_time": 1.9}, {"batch_time": 1.0}, False),
        ({"training_speed": 1}, {"training_speed": 0}, False),
        ({"training_speed": 1}, {}, False),
    ],
)
def test_half_the_speed_is_alarming(current, baseline, found):
    """Whether it is told as a speed or as the duration of a step."""
    assert types(current, baseline) == (["training_speed"] if found else [])


@pytest.mark.promise("S0-054")
@pytest.mark.parametrize(
    "memory",
    [
        {"gpu_0": {"memory_allocated": 95.0, "memory_reserved": 0.0}},
        {"gpu_0": {"memory_allocated": 95.0, "memory_reserved": 96.0}},
        {"gpu_0": {}},
        {},
        None,
        "much",
    ],
)
def test_the_allocators_figures_alone_are_no_use_of_a_gpu(memory):
    """The document's ratio of allocated to reserved says nothing, and divides by zero; without a capacity no alert."""
    assert types({"gpu_memory": memory}) == []


@pytest.mark.promise("S0-054")
def test_gpu_memory_is_judged_by_the_capacity_of_the_device():
    """Also where the document's own fields are there beside it."""
    figures = {"memory_allocated": 10.0, "memory_reserved": 10.5, "memory_used": 92.0, "memory_total": 100.0}
    assert types({"gpu_memory": {0: figures}}) == ["gpu_memory"]
    assert types({"gpu_memory": {0: {**figures, "memory_used": 20.0}}}) == []


@pytest.mark.promise("S0-055")
@pytest.mark.parametrize(
    ("loss", "baseline", "found"),
    [
        (5.0, 0.0, []),
        (-1.0, -2.0, ["loss_increase"]),
        (-2.1, -2.0, []),
        (1.0, float("nan"), []),
        (float("nan"), 1.0, ["loss_not_finite"]),
        (None, 1.0, []),
        (1.0, None, []),
    ],
)
def test_no_baseline_gives_nonsense(loss, baseline, found):
    """A rise is measured against the size of the baseline; of nothing there is no share."""
    assert types({"loss": loss}, {"loss": baseline}) == found


@pytest.mark.parametrize("current", [None, {}, 3])
def test_what_is_missing_is_not_judged(current):
    """And nothing raises."""
    assert PerformanceAlerting({}).check_alerts(current, None) == []


@pytest.mark.promise("S0-056", "S0-057")
def test_a_mail_with_starttls_and_login(tmp_path, monkeypatch):
    """The document's subject and body; the caller does not wait, and the same type is not sent again and again."""
    server = MailServer(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
    config = {"from": "a@example.com", "to": "b@example.com", "smtp_server": "localhost", "smtp_port": server.port}
    alerting = PerformanceAlerting({**config, "username": server.user, "password": server.password})
    alert = {"type": "gpu_memory", "message": "GPU 0 memory usage is 95.0%", "severity": "warning"}
    try:
        assert alerting.send_alert(alert)
        assert not alerting.send_alert(alert)
        assert alerting.flush(60.0)
    finally:
        server.close()
    [mail] = server.box.mails
    assert mail["mail"]["Subject"] == "Stepscope Alert: gpu_memory"
    assert mail["to"] == ["b@example.com"]
    text = server.box.text()
    for line in ("Type: gpu_memory", "Message: GPU 0 memory usage is 95.0%", "Severity: warning", "Time: 20"):
        assert line in text
    assert server.box.logins == [(server.user, server.password)]


@pytest.mark.promise("X-11")
def test_subject_and_body_are_templates():
    """The brand is a default; a placeholder that is none stays as it is."""
    sent = []
    alerting = PerformanceAlerting(
        {}, subject="[lab] {type} {nothing}", body="{message}!", send=lambda *mail: sent.append(mail) or ""
    )
    alerting.send_alert({"type": "cpu\r\nBcc: x@y.z", "message": "high", "severity": "warning"})
    assert alerting.flush(60.0)
    assert sent == [("[lab] cpu  Bcc: x@y.z {nothing}", "high!")]


@pytest.mark.promise("S0-057")
def test_a_mail_server_that_fails_stops_nothing_and_shows_no_password():
    """What is wrong is told once; the next alert of that type is tried, not left out."""
    stream = io.StringIO()
    config = {"from": "a@b.c", "to": "b@b.c", "smtp_server": "127.0.0.1", "smtp_port": 9}
    alerting = PerformanceAlerting({**config, "username": "u", "password": "hunter2"}, stream=stream)
    for _ in range(3):
        assert alerting.send_alert({"type": "x", "message": "m", "severity": "warning"})
        assert alerting.flush(60.0)
    assert alerting.failed == 3
    assert stream.getvalue().count("cannot send alert x") == 1
    assert "hunter2" not in stream.getvalue()
    empty = PerformanceAlerting(None, stream=stream)
    empty.send_alert({"type": "x"})
    assert empty.flush(60.0)
    assert "email_config has no from" in stream.getvalue()


@pytest.mark.promise("S0-057")
def test_a_sender_that_hangs_or_raises_keeps_nobody_waiting():
    """Neither the caller nor the alerts after it."""
    release = threading.Event()
    alerting = PerformanceAlerting({}, send=lambda *_: release.wait(600) and "", stream=io.StringIO())
    for number in range(200):  # none waits for what hangs: that goes on until it is released
        alerting.send_alert({"type": f"t{number}"})
    assert not alerting.flush(0.05)
    release.set()
    raising = PerformanceAlerting({}, send=lambda *_: 1 / 0, stream=io.StringIO())
    raising.send_alert({"type": "a"})
    assert raising.flush(60.0)
    assert raising.failed == 1


@pytest.mark.promise("S0-053")
def test_the_loop_sees_a_training_that_slows_down():
    """Steps a second are compared with the first that were seen, which is after the first sample."""
    clock = [100.0]
    training = TrainingMonitor(run=FakeRun())
    monitor = RealTimeMonitor(PerformanceAlerting({}), training_monitor=training, now=lambda: clock[0])
    machine = machine_of(Source({"cpu/usage_ratio": 0.1}))(1.0)
    alerts = []
    monitor.alerting_system.send_alert = alerts.append
    for steps in (10, 10, 10, 2):
        clock[0] += 1.0
        for _ in range(steps):
            training.log_training_step(loss=1.0)
        monitor._add(machine.look())
    assert monitor.baseline_metrics["training_speed"] == 10.0
    assert [alert["message"] for alert in alerts if alert["type"] == "training_speed"] == [
        "Training speed decreased by 80.0%"
    ]
    machine.close()


@pytest.mark.promise("S0-061", "S0-066", "S0-083")
def test_the_loop_samples_checks_and_sends_once():
    """A loss that has risen is sent by mail once, although every sample shows it."""
    sent = []
    alerting = PerformanceAlerting({}, send=lambda *mail: sent.append(mail) or "")
    monitor = RealTimeMonitor(alerting, make_machine=machine_of(Source({"cpu/usage_ratio": 0.5})), stream=io.StringIO())
    monitor.current_loss = 1.0
    monitor.start_monitoring(interval=0.02)
    wait_until(lambda: len(monitor.history) >= 2)
    monitor.current_loss = 2.0
    seen = len(monitor.history)
    wait_until(lambda: len(monitor.history) >= seen + 5)
    monitor.stop_monitoring()
    assert alerting.flush(60.0)
    assert monitor.baseline_metrics["loss"] == 1.0
    subjects = [subject for subject, _ in sent if "loss" in subject]
    assert subjects == ["Stepscope Alert: loss_increase"]
    assert "What to do: lower the learning rate" in next(body for subject, body in sent if "loss" in subject)


@pytest.mark.promise("X-05")
def test_thresholds_may_be_percent_and_nonsense_is_told():
    """90 and "90%" are 0.9; what cannot be meant is told once, and the default holds."""
    stream = io.StringIO()
    alerting = PerformanceAlerting(stream=stream)
    alerting.alert_thresholds["cpu_usage"] = "50%"
    assert [alert["type"] for alert in alerting.check_alerts({"cpu_percent": 60.0}, {})] == ["cpu_usage"]
    alerting.alert_thresholds["cpu_usage"] = 1.5
    assert alerting.check_alerts({"cpu_percent": 60.0}, {}) == []
    assert "cannot use the alert threshold 'cpu_usage': it is 1.5" in stream.getvalue()
