from __future__ import annotations

import pytest

from stepscope.monitor import SystemMonitor, TrainingMonitor
from tests.fakes import FakeClock, FakeRun
from tests.trackers.machines import GPU, HOST, NO_GPU, Source, machine_of, wait_until


def monitor_of(source, **more):
    return SystemMonitor(0.1, make_machine=machine_of(source), **more)


@pytest.mark.promise("S1-021")
def test_the_default_is_the_documents():
    """The machine is sampled every five seconds; nothing runs before the start."""
    monitor = SystemMonitor()
    assert (monitor.update_interval, SystemMonitor(update_interval=2.5).update_interval) == (5.0, 2.5)
    assert (monitor.is_monitoring, monitor.get_current_metrics()) == (False, {})


@pytest.mark.promise("S1-052")
def test_figures_have_the_documents_names_and_units():
    """Percent, degrees, watts and MB/s, over all GPUs of the machine."""
    with monitor_of(Source({**GPU, **HOST})) as monitor:
        wait_until(lambda: monitor.samples >= 2)
    current = monitor.get_current_metrics()
    assert current.pop("timestamp") > 1e9
    assert current == {
        "cpu_usage_percent": 50.0,
        "memory_usage_percent": 25.0,
        "gpu_utilization": 95.0,
        "gpu_memory_mb": 22500.0,
        "gpu_temperature": 75.0,
        "gpu_power_watts": 320.0,
        "disk_read_mb_s": 3.0,
    }
    assert monitor.values["cpu/usage_ratio"] == 0.5


def test_without_a_gpu_the_rest_is_there():
    """What the machine does not tell is absent, never 0, and its reason is at hand."""
    with monitor_of(Source(HOST, NO_GPU)) as monitor:
        wait_until(lambda: monitor.samples)
    assert not [name for name in monitor.get_current_metrics() if name.startswith("gpu")]
    assert monitor.absent == NO_GPU


def test_history_is_bounded():
    """The newest samples are kept."""
    with monitor_of(Source(HOST), history_size=2) as monitor:
        wait_until(lambda: monitor.samples >= 4)
    assert len(monitor.get_history()) == 2


@pytest.mark.promise("S1-038")
def test_it_lives_with_a_training_monitor():
    """Assigned to a training monitor it starts and stops with it, and its figures stand beside the steps'."""
    system = monitor_of(Source(HOST))
    training = TrainingMonitor(run=FakeRun(), clock=FakeClock())
    training.system_monitor = system
    assert (training.system_monitor is system, system.is_monitoring) == (True, False)
    training.start_monitoring()
    assert system.is_monitoring
    wait_until(lambda: system.samples)
    training.record_metrics(0, 1.0, 1e-3, 32)
    training.stop_monitoring()
    assert not system.is_monitoring
    assert training.metrics["cpu_usage_percent"] == [50.0]


def test_a_sample_is_kept_once():
    """Steps faster than the samples do not repeat them."""

    class Fixed:
        def get_current_metrics(self):
            return {"cpu_usage_percent": 1.0, "timestamp": 7.0}

    training = TrainingMonitor(run=FakeRun(), clock=FakeClock())
    training.system_monitor = Fixed()
    for step in range(3):
        training.record_metrics(step, 1.0, 1e-3, 32)
    assert training.metrics["cpu_usage_percent"] == [1.0]


def test_any_object_can_be_assigned(capsys):
    """What has no such methods is kept; one that raises is told once, and the training goes on."""

    class HostileError(Exception):
        def __str__(self):
            raise RuntimeError("no text either")

    class Broken:
        def get_current_metrics(self):
            raise HostileError

    training = TrainingMonitor(run=FakeRun(), clock=FakeClock())
    training.system_monitor = object()
    training.record_metrics(0, 1.0, 1e-3, 32)
    training.system_monitor = Broken()
    for step in range(3):
        training.record_metrics(step, 1.0, 1e-3, 32)
    assert (
        capsys.readouterr().err.count("cannot call system_monitor.get_current_metrics(): HostileError: (no text") == 1
    )
    assert training.get_training_stats()["total_steps"] == 4
