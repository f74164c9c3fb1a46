from __future__ import annotations

import importlib
import json
import math
import os
import sys
import threading
from pathlib import Path

import pytest

import stepscope.monitor
from stepscope.monitor import GPUMonitor, TrainingMonitorCallback
from tests.fakes import FakeClock, FakeRun
from tests.trackers.fakes import Gpu, Stubborn
from tests.trackers.machines import GPU, HOST, NO_GPU, Source, machine_of, wait_until

ROOT = Path(__file__).parents[2]


def monitor_of(source, log_dir=None, **more):
    return GPUMonitor(sample_interval=0.1, log_dir=log_dir, make_machine=machine_of(source), **more)


def watched(monitor, looks=3):
    """Let the monitor look a few times, and stop it."""
    with monitor:
        wait_until(lambda: monitor.get_summary()["samples"] >= looks)
    return monitor


def lines(folder, stem):
    return [
        json.loads(line) for path in sorted(folder.glob(f"{stem}_*.jsonl")) for line in path.read_text().splitlines()
    ]


@pytest.mark.promise("S2-017", "S2-050", "S2-049")
def test_the_defaults_are_the_documents():
    """GPU 0, one second, 300 samples; an interval goes down to 0.1 s; constructing starts nothing."""
    before = set(threading.enumerate())
    monitor = GPUMonitor(gpu_index=0, sample_interval=1.0)
    assert (monitor.gpu_index, monitor.sample_interval, monitor.history_size) == (0, 1.0, 300)
    assert GPUMonitor(sample_interval=0.001).sample_interval == 0.1
    assert not monitor.is_monitoring
    assert set(threading.enumerate()) <= before


@pytest.mark.promise("S2-016")
def test_a_gpu_is_sampled_in_the_documents_figures():
    """Current figures, history and summary are in the spelling of the files."""
    monitor = watched(monitor_of(Source({**GPU, **HOST})))
    current = monitor.get_current_metrics()
    assert (current["memory_percent"], current["power_draw_watts"]) == (91.5, 320.0)
    assert monitor.get_history()[-1] == current
    summary = monitor.get_summary()
    assert summary["utilization_percent"] == {"mean": 95.0, "min": 95.0, "max": 95.0}
    assert summary["cpu_usage_percent"]["mean"] == 50.0
    assert monitor.values["gpu/0/fan_ratio"] == 0.65


@pytest.mark.promise("S2-021")
def test_no_gpu_is_said_once_and_the_host_goes_on(capsys):
    """The reason and the remedy are told once; nothing raises, the host is sampled."""
    monitor = watched(monitor_of(Source(HOST, NO_GPU)), looks=4)
    assert (monitor.get_current_metrics(), monitor.is_available) == ({}, False)
    assert monitor.get_summary()["reason"] == "no driver here; install one"
    assert monitor.get_summary()["cpu_usage_percent"]["mean"] == 50.0
    assert capsys.readouterr().err.count("cannot sample GPU 0: no driver here; install one") == 1


def test_a_wrong_number_is_told_with_the_right_ones(capsys):
    """A GPU that is not among those of the machine is named with those that are."""
    monitor = watched(monitor_of(Source(GPU), gpu_index=4), looks=7)
    assert "this machine has GPUs 0; give one of them as gpu_index" in capsys.readouterr().err
    assert monitor.get_history() == []


@pytest.mark.promise("S2-050")
def test_history_is_bounded_and_the_summary_is_not():
    """As many samples as asked for are kept; the figures cover all of them."""
    source = Source({"gpu/0/power_watts": 100.0})
    monitor = monitor_of(source, history_size=2)
    monitor.start_monitoring()
    wait_until(lambda: len(monitor.get_history()) == 2)
    source.values = {"gpu/0/power_watts": 300.0}
    wait_until(lambda: {row["power_draw_watts"] for row in monitor.get_history()} == {300.0})
    monitor.stop_monitoring()
    power = monitor.get_summary()["power_draw_watts"]
    assert (power["min"], power["max"], len(monitor.get_history())) == (100.0, 300.0, 2)


def test_an_old_value_is_not_written_as_a_new_one(tmp_path):
    """A GPU that has stopped answering gets no further line, although its last figures are still at hand."""
    source = Source(GPU)
    monitor = monitor_of(source, tmp_path)
    monitor.start_monitoring()
    wait_until(monitor.get_history)
    source.values = {}
    wait_until(lambda: "gpu/0/fan_ratio" not in monitor._thread.latest.new)
    count, looks = len(monitor.get_history()), monitor._thread.samples
    wait_until(lambda: monitor._thread.samples > looks + 2)
    monitor.stop_monitoring()
    assert len(monitor.get_history()) == count == len(lines(tmp_path, "gpu_metrics"))


@pytest.mark.promise("S2-004", "S2-051")
def test_samples_are_in_files_at_once(tmp_path):
    """Each sample is a line before the next one is taken; GPU and host have files of their own."""
    monitor = monitor_of(Source({**GPU, **HOST}), tmp_path)
    with monitor:
        wait_until(lambda: len(lines(tmp_path, "gpu_metrics")) >= 2)
    assert lines(tmp_path, "gpu_metrics")[0]["memory_percent"] == 91.5
    assert lines(tmp_path, "system_metrics")[0]["cpu_usage_percent"] == 50.0


def test_a_folder_that_cannot_be_is_said_once(tmp_path, capsys):
    """Files that cannot be written are a notice; sampling goes on."""
    (tmp_path / "file").write_text("")
    monitor = watched(monitor_of(Source(GPU), tmp_path / "file"))
    assert capsys.readouterr().err.count("cannot write gpu_metrics") == 1
    assert monitor.get_summary()["samples"] >= 3


def test_stopping_closes_the_sources_and_starting_goes_on():
    """Start and stop may be called again; the thread lets go of everything it made."""
    source = Source(GPU)
    monitor = monitor_of(source)
    for time in range(1, 3):
        monitor.start_monitoring()
        monitor.start_monitoring()
        wait_until(lambda: monitor.is_monitoring)
        monitor.stop_monitoring()
        monitor.stop_monitoring()
        wait_until(lambda time=time: source.closed == time)
    assert not monitor.is_monitoring


def test_a_forked_child_has_no_thread_and_stops_nothing():
    """In a child it is not monitoring, and stopping it there leaves the parent's sampling alone."""
    source = Source(GPU)
    monitor = monitor_of(source)
    monitor.start_monitoring()
    wait_until(monitor.get_history)
    child = os.fork()
    if not child:
        fine = not monitor.is_monitoring and bool(monitor.get_history())
        monitor.stop_monitoring()
        os._exit(0 if fine and not source.closed else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert monitor.is_monitoring
    monitor.stop_monitoring()


@pytest.fixture
def callback(tmp_path):
    """A callback that writes below a temporary folder, with a clock that moves when told."""
    return TrainingMonitorCallback(monitor_of(Source(GPU), tmp_path), clock=FakeClock())


@pytest.mark.promise("S2-018", "S2-019", "S2-002")
def test_the_callback_writes_the_documents_fields(callback, tmp_path):
    """`lr`, `grad_norm` and `throughput` become the fields of the file; begin and end drive the monitor."""
    callback.on_train_begin()
    assert callback.gpu_monitor.is_monitoring
    for step in range(3):
        callback.on_step_begin()
        callback._clock.pass_time(0.25)
        callback.on_step_end(step=step, epoch=0.5, loss=1.0, lr=1e-4, grad_norm=2.0, throughput=32.5)
    callback.on_train_end()
    assert not callback.gpu_monitor.is_monitoring
    rows = lines(tmp_path, "training_metrics")
    assert [row["step"] for row in rows] == [0, 1, 2]
    named = {"epoch": 0.5, "loss": 1.0, "learning_rate": 1e-4, "gradient_norm": 2.0, "throughput_samples_per_sec": 32.5}
    assert named.items() <= rows[0].items()
    assert rows[0]["memory_allocated_mb"] is None
    assert (callback.step_seconds, callback.get_summary()["steps"]) == (0.25, 3)


def test_a_step_is_written_when_it_ends(callback, tmp_path):
    """A line does not wait for the end of the training."""
    callback.on_step_end(step=0, loss=1.0)
    wait_until(lambda: lines(tmp_path, "training_metrics"))
    assert [row["loss"] for row in lines(tmp_path, "training_metrics")] == [1.0]
    callback.on_train_end()


@pytest.mark.promise("S2-047")
def test_odd_losses_are_written_as_what_they_are(callback, tmp_path, capsys):
    """NaN is null with a flag; what is no number is null, and said once."""
    callback.on_step_end(step=0, loss=math.nan, mine=3)
    for step in (1, 2):
        callback.on_step_end(step=step, loss=Stubborn())
    callback.on_train_end()
    rows = lines(tmp_path, "training_metrics")
    assert [(row["loss"], row.get("nonfinite")) for row in rows] == [
        (None, {"loss": "nan"}),
        (None, None),
        (None, None),
    ]
    assert rows[0]["mine"] == 3
    assert capsys.readouterr().err.count("cannot write loss") == 1


def test_a_device_loss_is_read_by_the_writing_thread(callback, tmp_path):
    """The training thread never waits for a tensor; its value at the call is in the file."""
    gpu = Gpu()
    running = gpu.tensor(0.0)
    threads = set()
    running.__class__.item, plain = (
        lambda self: threads.add(threading.current_thread()) or plain(self),
        running.__class__.item,
    )
    try:
        for step in range(3):
            running.fill_(float(step))
            callback.on_step_end(step=step, loss=running)
        callback.on_train_end()
    finally:
        running.__class__.item = plain
    assert [row["loss"] for row in lines(tmp_path, "training_metrics")] == [0.0, 1.0, 2.0]
    assert threading.current_thread() not in threads


def test_steps_go_to_a_run_too(tmp_path):
    """A run gets the canonical names; without files nothing is written but that."""
    run = FakeRun()
    callback = TrainingMonitorCallback(monitor_of(Source(GPU)), run=run, clock=FakeClock())
    callback.on_train_begin()
    callback.on_step_end(step=7, loss=0.5, lr=1e-3, grad_norm=2.0, throughput=10.0)
    callback.on_train_end()
    values = {"loss": 0.5, "learning_rate": 1e-3, "grad_norm": 2.0, "samples_per_second": 10.0}
    assert run.rows == [(7, values)]


@pytest.mark.promise("S2-007", "S2-008", "S2-016")
def test_the_documents_module_is_the_command(monkeypatch):
    """`monitoring.gpu_monitor` exports the classes and runs `stepscope monitor` with its arguments."""
    monkeypatch.syspath_prepend(str(ROOT))
    module = importlib.import_module("monitoring.gpu_monitor")
    called = []
    assert (
        module.main(["--gpu", "0", "--prometheus-port", "9090"], command=lambda words: called.append(words) or 0) == 0
    )
    assert called == [["monitor", "--jsonl-dir", "gpu_logs", "--gpu", "0", "--prometheus-port", "9090"]]
    assert module.GPUMonitor is stepscope.monitor.GPUMonitor
    assert module.TrainingMonitorCallback is stepscope.monitor.TrainingMonitorCallback


@pytest.mark.promise("S2-015")
def test_the_example_monitors_shows_and_trains(monkeypatch, tmp_path, capsys):
    """Modes monitor and dashboard are commands; mode train simulates a training and prints what was seen."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = importlib.import_module("monitor_training_example")
    called = []
    assert script.main(["--mode", "monitor"], command=lambda words: called.append(words) or 0) == 0
    assert script.main(["--mode", "dashboard"], command=lambda words: called.append(words) or 0) == 0
    assert called == [["monitor", "--gpu", "0", "--interval", "1.0", "--jsonl-dir", "gpu_logs"], ["top"]]
    options = script.parse(["--mode", "train", "--steps", "5", "--log-dir", str(tmp_path)])
    assert script.train(options, sleep=lambda seconds: None) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 5
    assert [row["step"] for row in lines(tmp_path, "training_metrics")] == list(range(5))
    sys.modules.pop("monitor_training_example")
