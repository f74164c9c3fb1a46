from __future__ import annotations

import io
import json
import time

import pytest

from stepscope.monitor import RealTimeMonitor, TrainingMonitor
from tests.fakes import FakeClock, FakeRun
from tests.trackers.machines import GPU, HOST, Source, machine_of, wait_until


class Alerting:
    """Finds one alert in every sample, and fails to send every other one."""

    def __init__(self, error=None):
        self.checked, self.sent, self.error = [], [], error

    def check_alerts(self, current, baseline):
        self.checked.append((current, baseline))
        if self.error is not None:
            raise self.error
        return [{"type": "a"}, {"type": "b"}]

    def send_alert(self, alert):
        if alert["type"] == "a":
            raise OSError("no mail")
        self.sent.append(alert)


def monitor_of(alerting=None, source=None, **more):
    return RealTimeMonitor(alerting, make_machine=machine_of(source or Source({**GPU, **HOST})), **more)


def sample_once(monitor, source=None):
    monitor._add(machine_of(source or Source({**GPU, **HOST}))(1.0).look())


@pytest.mark.promise("S0-058")
def test_the_attributes_are_the_documents():
    """Before the start there is no thread, no baseline and no monitoring."""
    alerting = Alerting()
    monitor = RealTimeMonitor(alerting)
    assert monitor.alerting_system is alerting
    assert (monitor.monitoring_thread, monitor.is_monitoring, monitor.baseline_metrics) == (None, False, None)


@pytest.mark.promise("S0-059")
def test_a_start_starts_one_daemon_thread():
    """A second start is harmless."""
    monitor = monitor_of()
    monitor.start_monitoring(interval=30)
    thread = monitor.monitoring_thread
    monitor.start_monitoring(interval=1)
    assert (monitor.monitoring_thread is thread, thread.daemon, monitor.is_monitoring) == (True, True, True)
    monitor.stop_monitoring()


@pytest.mark.promise("S0-060")
def test_a_stop_does_not_wait_for_the_interval():
    """Stopping returns long before the next sample is due, and the thread is gone."""
    monitor = monitor_of()
    monitor.start_monitoring(interval=3600)
    thread = monitor.monitoring_thread
    wait_until(lambda: monitor.history)
    start = time.monotonic()
    monitor.stop_monitoring()
    assert time.monotonic() - start < 60
    thread.join(60)
    assert (thread.is_alive(), monitor.is_monitoring) == (False, False)
    monitor.stop_monitoring()


@pytest.mark.promise("S0-061", "S0-062", "S0-066")
def test_samples_are_checked_against_the_first_and_alerts_are_sent():
    """The first sample is the baseline; an alert that cannot be sent is told and keeps no other from going."""
    alerting, stream = Alerting(), io.StringIO()
    monitor = monitor_of(alerting, stream=stream)
    monitor.start_monitoring(interval=0.01)
    wait_until(lambda: len(alerting.sent) >= 3)
    monitor.stop_monitoring()
    assert all(baseline is alerting.checked[0][0] for _, baseline in alerting.checked)
    assert {alert["type"] for alert in alerting.sent} == {"b"}
    assert stream.getvalue() == "Monitoring error: no mail\n"


@pytest.mark.promise("S0-062")
def test_the_loop_outlives_its_errors():
    """A check that raises is reported once in a row and counted, and every sample is still kept."""
    alerting, stream = Alerting(ValueError("bad rule")), io.StringIO()
    monitor = monitor_of(alerting, stream=stream)
    monitor.start_monitoring(interval=0.01)
    wait_until(lambda: len(monitor.history) >= 3)
    monitor.stop_monitoring()
    assert monitor.errors >= 3
    assert stream.getvalue() == "Monitoring error: bad rule\n"


@pytest.mark.promise("S0-066")
def test_the_baseline_can_be_given_or_wait_for_the_warm_up():
    """A given baseline is used; samples of the warm-up are neither baseline nor checked."""
    alerting = Alerting()
    given = monitor_of(alerting, baseline_metrics={"loss": 1.0}, stream=io.StringIO())
    machine = machine_of(Source(HOST))(1.0)
    given._add(machine.look())
    assert alerting.checked[0][1] == {"loss": 1.0}
    warm = monitor_of(Alerting(), warmup_samples=2, stream=io.StringIO())
    for loss in (9.0, 8.0, 1.0, 0.5):
        warm.current_loss = loss
        warm._add(machine.look())
    assert (warm.baseline_metrics["loss"], len(warm.alerting_system.checked)) == (1.0, 2)


@pytest.mark.promise("S0-063", "S0-064")
def test_a_sample_has_the_documents_keys():
    """Loss, GPU memory by GPU in MiB, processor in percent and the time come from hooks that exist."""
    monitor = monitor_of(now=lambda: 12.0)
    monitor.current_loss = 0.5
    sample_once(monitor)
    metrics = monitor.history[-1]
    assert list(metrics) == ["loss", "gpu_memory", "cpu_percent", "timestamp"]
    assert metrics["gpu_memory"] == {"gpu_0": {"memory_used": 22500.0, "memory_total": 24576.0}}
    assert (metrics["loss"], metrics["timestamp"], 0 <= metrics["cpu_percent"] <= 100) == (0.5, 12.0, True)
    assert monitor._get_current_loss() == 0.5


def test_hooks_can_be_overridden():
    """A subclass may supply its own loss, as the documents suggest."""

    class Mine(RealTimeMonitor):
        def _get_current_loss(self):
            return 42.0

    monitor = Mine()
    sample_once(monitor, Source(HOST))
    assert monitor.history[-1]["loss"] == 42.0


def test_the_loss_comes_from_a_training_monitor():
    """The newest loss of the training is the current one; without any it is not known."""
    training = TrainingMonitor(run=FakeRun(), clock=FakeClock())
    monitor = monitor_of(training_monitor=training)
    assert monitor._get_current_loss() is None
    training.record_metrics(0, 0.25, 1e-3, 32)
    assert monitor._get_current_loss() == 0.25


@pytest.mark.promise("S0-065")
def test_storage_is_pluggable(tmp_path):
    """A function is given every sample; a folder gets a file of JSON lines."""
    taken = []
    machine = machine_of(Source(HOST))(1.0)
    monitor_of(storage=taken.append)._add(machine.look())
    assert list(taken[0]) == ["loss", "gpu_memory", "cpu_percent", "timestamp"]
    monitor_of(storage=tmp_path, now=lambda: 3.0)._add(machine.look())
    [path] = tmp_path.glob("monitoring_metrics_*.jsonl")
    assert json.loads(path.read_text())["timestamp"] == 3.0


def test_without_an_alerting_system_it_only_samples():
    """Checking and sending are left out where the system has neither."""
    monitor = monitor_of(object())
    sample_once(monitor)
    assert len(monitor.history) == 1
