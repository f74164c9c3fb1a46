from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from stepscope.monitor import TrainingMetrics, TrainingMonitor
from tests.fakes import FakeClock, FakeRun
from tests.trackers.fakes import Gpu, Stubborn

STATS = ["current_loss", "avg_loss", "min_loss", "max_loss", "total_steps", "training_time"]


@pytest.fixture
def run():
    """A run that keeps its rows."""
    return FakeRun()


@pytest.fixture
def monitor(run):
    """A monitor that records into it."""
    return TrainingMonitor(run=run, clock=FakeClock())


@pytest.mark.promise("S0-001", "S0-006")
def test_a_monitor_without_arguments_starts_nothing(tmp_path, monkeypatch):
    """The constructor does no I/O, and without a record there are no figures."""
    monkeypatch.chdir(tmp_path)
    monitor = TrainingMonitor(start_run=lambda settings: pytest.fail("a run was started"))
    assert (monitor.get_training_stats(), monitor.run, list(tmp_path.iterdir())) == ({}, None, [])


@pytest.mark.promise("S0-002")
def test_metrics_behave_as_a_defaultdict_of_lists(monitor):
    """Unknown names read as empty lists, and lists are lists: they take text, are added to, and written as JSON."""
    assert isinstance(monitor.metrics, defaultdict)
    assert isinstance(monitor.metrics["unknown"], list)
    assert monitor.start_time == 1000.0
    assert not monitor.metrics["unknown"]
    monitor.metrics["mine"].append(2)
    monitor.metrics["mine"].extend([3, 4])
    mine = monitor.metrics["mine"]
    assert (mine == [2, 3, 4], mine[-1], mine[:2], sum(mine), max(mine), len(mine)) == (True, 4, [2, 3], 9, 4, 3)
    monitor.metrics["notes"].append("warm-up")
    monitor.record_metrics(5, 0.5, 1e-3, 32)
    assert monitor.metrics["loss"] + [0.25] == [0.5, 0.25]
    assert json.loads(json.dumps(monitor.metrics))["notes"] == ["warm-up"]


@pytest.mark.promise("S0-003")
def test_record_metrics_appends_to_five_lists(monitor, run):
    """Step, loss, learning rate, batch size and time are kept in process and recorded in the run."""
    monitor.record_metrics(5, 0.5, 1e-3, 32)
    monitor.record_metrics(6, 0.25, 1e-4, 64)
    assert monitor.metrics == {
        "step": [5, 6],
        "loss": [0.5, 0.25],
        "learning_rate": [1e-3, 1e-4],
        "batch_size": [32, 64],
        "timestamp": [1000.0, 1000.0],
    }
    assert run.rows[1] == (6, {"loss": 0.25, "learning_rate": 1e-4, "batch_size": 64})


@pytest.mark.promise("S0-004")
def test_a_loss_is_any_kind_of_number(monitor):
    """Floats, ints, numpy scalars and tensors are losses alike."""
    torch = pytest.importorskip("torch")
    for step, loss in enumerate([0.5, 1, np.float32(1.5), torch.tensor(2.0, requires_grad=True)]):
        monitor.record_metrics(step, loss, 1e-3, 32)
    assert monitor.metrics["loss"] == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.promise("S0-005")
def test_a_device_loss_is_not_waited_for(monitor, run):
    """A GPU tensor is copied at the call, unharmed by changes in place, and read when figures are asked for."""
    gpu = Gpu()
    running = gpu.tensor(0.0)
    for step in range(3):
        running.fill_(float(step))
        monitor.record_metrics(step, running, 1e-3, 32)
        monitor.log_training_step(loss=running, accuracy=running, custom_metrics={"score": running})
    assert gpu.waits == 0
    assert monitor.metrics["loss"] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert [values["loss"].memory for _, values in run.rows[::2]] == [[0.0], [1.0], [2.0]]


@pytest.mark.promise("S0-007")
def test_training_stats_have_exactly_the_documented_keys(monitor):
    """The figures are those of the losses so far."""
    for step, loss in enumerate([3.0, 1.0, 2.0]):
        monitor.record_metrics(step, loss, 1e-3, 32)
    monitor._clock.pass_time(7.5)
    assert list(monitor.get_training_stats()) == STATS
    assert list(monitor.get_training_stats().values()) == pytest.approx([2.0, 2.0, 1.0, 3.0, 3, 7.5])


@pytest.mark.promise("S0-008")
def test_non_finite_losses_are_counted_and_poison_nothing(monitor):
    """NaN and infinity stay out of average, minimum and maximum; the current loss shows them."""
    for step, loss in enumerate([2.0, math.inf, 4.0, math.nan]):
        monitor.record_metrics(step, loss, 1e-3, 32)
    stats = monitor.get_training_stats()
    assert [stats[name] for name in STATS[1:5]] == [3.0, 2.0, 4.0, 4]
    assert math.isnan(stats["current_loss"])
    assert monitor.non_finite_losses == 2


def test_only_non_finite_losses_give_nan(monitor):
    """An average that does not exist can still be formatted by a training loop."""
    monitor.record_metrics(0, math.inf, 1e-3, 32)
    assert f"{monitor.get_training_stats()['avg_loss']:.3f}" == "nan"


@pytest.mark.promise("S0-009")
def test_memory_is_bounded_and_the_figures_cover_everything(monitor):
    """The lists keep the newest 10 000 values; count, average and minimum are over all steps."""
    for step in range(10_100):
        monitor.record_metrics(step, float(step), 1e-3, 32)
    stats = monitor.get_training_stats()
    assert (len(monitor.metrics["loss"]), monitor.metrics["loss"][0]) == (10_000, 100.0)
    assert (stats["total_steps"], stats["min_loss"], stats["avg_loss"]) == (10_100, 0.0, 5049.5)


def test_a_jump_of_the_clock_does_not_change_the_training_time(monitor):
    """Durations come from the monotonic clock; start_time can be set anew."""
    monitor.record_metrics(0, 1.0, 1e-3, 32)
    monitor._clock.wall += 3600
    monitor._clock.ticks += 2
    assert monitor.get_training_stats()["training_time"] == pytest.approx(2.0)
    monitor.start_time = monitor._clock.wall
    assert monitor.get_training_stats()["training_time"] == pytest.approx(0.0)


@pytest.mark.promise("S0-010", "X-01", "S1-023", "S1-024", "S1-025", "S1-027")
def test_one_class_takes_nothing_a_dictionary_or_a_file(tmp_path):
    """All constructor forms give the same monitor, and the documents' keys reach its run."""
    settings = {"save_dir": "./monitoring_logs", "enable_dashboard": True, "dashboard_port": 8080}
    settings |= {"enable_alerts": True, "tensorboard_dir": "./logs", "enable_performance_monitor": True}
    settings |= {"distributed_monitoring": True, "track_rank_0_only": True}
    path = tmp_path / "monitoring_config.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    given = []
    for config in (settings, path, str(path)):
        monitor = TrainingMonitor(config, start_run=lambda chosen: given.append(dict(chosen.given)) or FakeRun())
        monitor.record_metrics(0, 1.0, 1e-3, 32)
        assert (monitor.tensorboard_dir, monitor.get_training_stats()["total_steps"]) == ("./logs", 1)
    assert given[0] == given[1] == given[2]
    assert given[0]["store.dir"] == "./monitoring_logs"
    assert given[0]["recorder.track_rank_0_only"] is True


@pytest.mark.parametrize("config", [{"savedir": "x"}, {"save_dir": 3}, "no/such/file.yaml", {1: 2}])
def test_a_bad_configuration_is_said_once_and_never_raises(config, capsys):
    """What is wrong is told with its remedy, and the training is monitored all the same."""
    monitor = TrainingMonitor(config, run=FakeRun())
    monitor.record_metrics(0, 1.0, 1e-3, 32)
    assert capsys.readouterr().err.count("cannot load") == 1
    assert monitor.get_training_stats()["total_steps"] == 1


@pytest.mark.promise("S1-028")
def test_monitoring_starts_and_stops(monitor):
    """The monitor makes one run, finishes it once, and begins another when started again."""
    runs = []
    monitor = TrainingMonitor(start_run=lambda settings: runs.append(FakeRun()) or runs[-1])
    monitor.start_monitoring()
    monitor.start_monitoring()
    monitor.stop_monitoring()
    monitor.stop_monitoring()
    assert [run.finished for run in runs] == [1]
    with monitor:
        monitor.record_metrics(0, 1.0, 1e-3, 32)
    assert [(len(run.rows), run.finished) for run in runs] == [(0, 1), (1, 1)]


def test_an_exception_ends_the_run_as_failed():
    """The exception goes on to the caller, and the run knows of it."""
    run = FakeRun()
    with pytest.raises(KeyError), TrainingMonitor(start_run=lambda settings: run):
        raise KeyError
    assert isinstance(run.error, KeyError)


def test_a_given_run_is_not_finished(monitor, run):
    """Who made the run ends it."""
    with monitor:
        monitor.record_metrics(0, 1.0, 1e-3, 32)
    assert (run.finished, len(run.rows)) == (0, 1)


def test_a_record_after_the_stop_is_kept_in_process_and_said(monitor, run, capsys):
    """No run is begun behind the user's back."""
    monitor.stop_monitoring()
    monitor.record_metrics(0, 1.0, 1e-3, 32)
    monitor.record_metrics(1, 1.0, 1e-3, 32)
    assert (len(run.rows), len(monitor.metrics["loss"])) == (0, 2)
    assert capsys.readouterr().err.count("monitoring was stopped") == 1


@pytest.mark.promise("S1-029")
def test_a_step_takes_its_learning_rate_from_the_optimizer(monitor, run):
    """A learning rate that is given wins; omitted values are absent; steps count up from 0."""
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.01}, {"lr": 0.1}])
    monitor.log_training_step(model=object(), optimizer=optimizer, loss=0.5, accuracy=0.9)
    monitor._clock.pass_time(0.25)
    monitor.log_training_step(optimizer=optimizer, loss=0.4, learning_rate=0.02)
    assert run.rows == [
        (0, {"loss": 0.5, "accuracy": 0.9, "learning_rate": 0.01}),
        (1, {"loss": 0.4, "learning_rate": 0.02, "step_seconds": pytest.approx(0.25)}),
    ]


@pytest.mark.promise("S1-029")
def test_the_documents_torch_loop_runs_as_written(monitor, run):
    """The integration example trains a real model, and every step is recorded with the optimizer's learning rate."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 2)).square().mean()
        loss.backward()
        optimizer.step()
        monitor.log_training_step(model=model, optimizer=optimizer, loss=loss.item(), accuracy=0.5)
        monitor.record_metrics(9, loss, optimizer.param_groups[0]["lr"], 4)
    assert [values["learning_rate"] for _, values in run.rows] == [0.1] * 6
    assert monitor.metrics["loss"][0] == monitor.metrics["loss"][1]


@pytest.mark.parametrize(
    "optimizer", [None, object(), SimpleNamespace(param_groups=[]), SimpleNamespace(param_groups=3)]
)
def test_an_optimizer_without_a_learning_rate_leaves_it_absent(monitor, run, optimizer):
    """Nothing is made up."""
    monitor.log_training_step(optimizer=optimizer, loss=0.5)
    assert run.rows == [(0, {"loss": 0.5})]


def test_an_explicit_step_does_not_move_the_count(monitor, run):
    """A given step stands for itself."""
    monitor.log_training_step(loss=1.0, step=100)
    monitor.log_training_step(loss=1.0)
    assert [step for step, _ in run.rows] == [100, 0]


@pytest.mark.promise("S1-032")
def test_custom_metrics_of_a_step_are_recorded(monitor, run):
    """The documents' example keys are kept, recorded and readable as attributes."""
    custom = {"tokens_per_second": 900.0, "throughput": 8.0, "memory_efficiency": 0.5, "batch_size": 16}
    metrics = monitor.log_training_step(loss=0.5, custom_metrics=custom)
    assert run.rows == [(0, {"loss": 0.5, **custom})]
    assert (metrics.tokens_per_second, metrics.batch_size, monitor.metrics["throughput"]) == (900.0, 16, [8.0])


def test_functions_given_to_the_monitor_are_called_at_every_step(run):
    """custom_metrics= computes metrics from the step."""
    monitor = TrainingMonitor(run=run, custom_metrics={"perplexity": lambda metrics: math.exp(metrics.loss)})
    monitor.log_training_step(loss=0.0)
    assert run.rows == [(0, {"loss": 0.0, "perplexity": 1.0})]


def test_no_input_raises_into_the_loop(monitor):
    """Odd values, odd names and odd steps are left to the run, which says what it refuses."""
    monitor.record_metrics("five", Stubborn(), None, [1, 2])
    monitor.log_training_step(loss=np.zeros(3), custom_metrics={"": 1, "\0": 2, 3: 4, "note": "text"})
    monitor.log_training_step(custom_metrics=[1, 2])
    assert monitor.get_training_stats() == {}
    assert monitor.metrics["3"] == [4]


def test_a_loss_among_the_custom_metrics_is_the_loss(monitor, run):
    """A field's name means the field, wherever it is given."""
    metrics = monitor.log_training_step(custom_metrics={"loss": 0.5})
    assert (metrics.loss, monitor.get_training_stats()["avg_loss"]) == (0.5, 0.5)
    assert run.rows == [(0, {"loss": 0.5})]


def test_a_dashboard_gets_what_is_recorded(monitor, capsys):
    """An attached dashboard has a row for each step; one without rows is kept and left alone, without a notice."""
    assert monitor.dashboard is None
    for attached in (object(), SimpleNamespace(metrics_data=[])):
        monitor.dashboard = attached
        assert monitor.dashboard is attached
        monitor.record_metrics(3, 0.5, 1e-3, 32)
    (row,) = attached.metrics_data
    assert (row["step"], row["loss"]) == (3, 0.5)
    assert capsys.readouterr().err == ""


@pytest.mark.promise("S1-051", "X-04")
def test_a_step_has_the_documents_fields_and_is_recorded_under_their_names():
    """Spellings are the documents', in a run too; only the duration of the step has the name of all durations."""
    metrics = TrainingMetrics(step=3, loss=0.5, accuracy=0.9, learning_rate=1e-3, grad_norm=2.0, batch_time=0.25)
    metrics.cpu_memory_mb, metrics.gpu_memory_mb = 100.0, 10.0
    assert list(metrics.to_dict()) == (
        ["step", "loss", "accuracy", "learning_rate", "grad_norm", "batch_time", "cpu_memory_mb", "gpu_memory_mb"]
    )
    recorded = metrics.to_run()
    assert (recorded["cpu_memory_mb"], recorded["gpu_memory_mb"], recorded["step_seconds"]) == (100.0, 10.0, 0.25)


def test_every_name_is_recorded_as_it_was_given():
    """No spelling is replaced by another one, which the user may log as well."""
    custom = {"lr": 0.1, "gradient_norm": 1.0, "samples_per_sec": 5.0, "tokens_per_sec": 9.0}
    recorded = TrainingMetrics(custom=custom).to_run()
    assert recorded == custom
    both = TrainingMetrics(learning_rate=0.2, custom=custom).to_run()
    assert (both["lr"], both["learning_rate"]) == (0.1, 0.2)
    assert TrainingMetrics(custom=custom).to_dict() == custom


def test_custom_metrics_read_as_attributes():
    """A name that the step does not have is an AttributeError that lists those it has; copies keep them."""
    metrics = TrainingMetrics(loss=0.5, custom={"tokens_per_second": 900.0})
    assert copy.deepcopy(metrics).tokens_per_second == 900.0
    assert dataclasses.asdict(metrics)["custom"] == {"tokens_per_second": 900.0}
    with pytest.raises(AttributeError, match="tokens_per_second"):
        _ = metrics.tokens_per_minute


def test_a_device_value_is_read_when_the_dictionary_is_made():
    """to_dict gives plain numbers, whatever they came as."""
    gpu = Gpu()
    assert TrainingMetrics(loss=gpu.tensor(2.0)).to_dict() == {"loss": 2.0}


@pytest.mark.promise("S1-076")
@pytest.mark.parametrize(
    ("config", "rank", "told"),
    [
        ({"track_rank_0_only": True}, 0, 1),
        ({"track_rank_0_only": True}, 1, 0),
        ({"distributed_monitoring": False}, 1, 0),
        ({}, 1, 1),
    ],
)
def test_a_rank_that_is_not_tracked_tells_no_alert(config, rank, told, monkeypatch, capsys):
    """With `track_rank_0_only` one rank tells what all of them see; without, each tells of its own."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monitor = TrainingMonitor(config, run=FakeRun())
    monitor.alert_system.add_alert_rule("high", lambda metrics: metrics.loss > 1, message="loss {loss}")
    monitor.record_metrics(0, 5.0, 1e-3, 32)
    monitor.stop_monitoring()
    assert capsys.readouterr().err.count("ALERT") == told
