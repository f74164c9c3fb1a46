from __future__ import annotations

import math

import pytest

import stepscope
from stepscope.metrics import MetricTracker
from stepscope.monitor import MetricsCollector, TrainingMetrics, TrainingMonitor

pytestmark = pytest.mark.processes


@pytest.mark.promise("S0-003", "S1-024")
def test_what_a_monitor_records_can_be_read_back(tmp_path):
    """Every value is in a run below save_dir, at its step and under its canonical name."""
    with TrainingMonitor({"save_dir": str(tmp_path / "monitoring_logs")}) as monitor:
        for step in range(50):
            monitor.record_metrics(step, 1.0 / (step + 1), 1e-3, 32)
        path = monitor.run.path
        stats = monitor.get_training_stats()
    past = stepscope.open(path)
    assert (tmp_path / "monitoring_logs") in path.parents
    assert {"loss", "learning_rate", "batch_size"} <= set(past.names())
    assert past.series("loss").step.tolist() == list(range(50))
    summary = past.summary("loss")
    assert [summary[name] for name in ("mean", "min", "max", "last")] == pytest.approx(
        [stats["avg_loss"], stats["min_loss"], stats["max_loss"], stats["current_loss"]]
    )


@pytest.mark.promise("S4-020")
def test_a_tracker_and_a_run_agree(tmp_path):
    """The same values give the same figures in process and read back, NaN and standard deviation included."""
    tracker, values = MetricTracker(), [1.0, 2.0, math.nan, 4.0, math.inf, 8.0]
    with stepscope.init(project="agree", dir=tmp_path) as run:
        for value in values:
            tracker.update("loss", value)
            run.log(loss=value)
    past, own = stepscope.open(run.path).summary("loss"), tracker.get_summary("loss")
    assert own.pop("nonfinite") == past["nonfinite"]
    assert own == pytest.approx({name: past[name] for name in own})


@pytest.mark.promise("S1-032")
def test_custom_metrics_can_be_read_back(tmp_path):
    """The documents' custom metrics are series of the run."""
    custom = {"tokens_per_second": 900.0, "throughput": 8.0, "memory_efficiency": 0.5, "batch_size": 16}
    with TrainingMonitor({"save_dir": str(tmp_path)}) as monitor:
        monitor.log_training_step(loss=0.5, custom_metrics=custom)
        path = monitor.run.path
    past = stepscope.open(path)
    assert {name: past.series(name).value.tolist() for name in custom} == {name: [custom[name]] for name in custom}


def test_a_monitor_whose_folder_cannot_be_made_goes_on(tmp_path, capfd):
    """The figures in process are there, and it is said once that nothing is recorded."""
    (tmp_path / "file").touch()
    monitor = TrainingMonitor({"save_dir": str(tmp_path / "file" / "logs")})
    for step in range(3):
        monitor.record_metrics(step, 1.0, 1e-3, 32)
    monitor.stop_monitoring()
    assert monitor.get_training_stats()["total_steps"] == 3
    assert capfd.readouterr().err.count("cannot ") == 1


def test_a_collector_writes_all_steps_to_a_real_run(tmp_path):
    """Buffered steps arrive with their own step index."""
    run = stepscope.init(project="collector", dir=tmp_path)
    with MetricsCollector(run, buffer_size=7) as collector:
        for step in range(20):
            collector.collect(TrainingMetrics(step=step, loss=float(step)))
    run.finish()
    assert stepscope.open(run.path).series("loss").step.tolist() == list(range(20))


@pytest.mark.promise("S1-051", "X-03")
def test_a_name_returns_what_was_logged_under_it(tmp_path):
    """Neither the watcher's samples nor another spelling stand in for a value that the user logged."""
    with TrainingMonitor({"save_dir": str(tmp_path)}) as monitor:
        own = {"cpu_memory_mb": 1000.0, "gpu_memory_mb": 2000.0, "lr": 0.5, "throughput": 7.0}
        step = monitor.log_training_step(loss=1.0, learning_rate=0.1, custom_metrics=own)
        path = monitor.run.path
    past = stepscope.open(path)
    assert {name: past.series(name).value.tolist() for name in own} == {name: [value] for name, value in own.items()}
    assert past.series("learning_rate").value.tolist() == [0.1]
    assert past.metric("cpu_memory_mb").unit == "MiB"
    assert step.to_dict().items() >= own.items()


@pytest.mark.promise("S1-051")
def test_a_step_says_how_much_memory_the_process_has(tmp_path):
    """`cpu_memory_mb` is filled in, in MiB, for rules and for the caller."""
    with TrainingMonitor({"save_dir": str(tmp_path)}) as monitor:
        step = monitor.log_training_step(loss=1.0)
    assert 5 < step.cpu_memory_mb < 100_000
