from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lightning")
import lightning
import torch

import stepscope
from stepscope.callbacks import (
    ProfilerCallback,
    ResourceMonitorCallback,
    StepscopeLogger,
    ThroughputMonitorCallback,
)
from stepscope.core.errors import UsageError
from tests.integrations.fits import Model, loader, trainer, work
from tests.integrations.programs import kinds, last_run
from tests.trackers.machines import GPU, HOST, Source, machine_of

# What Lightning says of small data, of its own dependencies and of torch is not ours to mend.
MARK = pytest.mark
pytestmark = [MARK.filterwarnings("ignore"), MARK.usefixtures("one_thread"), MARK.processes, MARK.training]
ROOT = Path(__file__).resolve().parents[2]
NAP = 0.05


@pytest.mark.promise("S3-007")
def test_importing_the_face_loads_no_framework():
    """`stepscope.callbacks` names every class without loading Lightning, Transformers, Accelerate or torch."""
    program = (
        "import sys, stepscope.callbacks as face\n"
        "assert 'ThroughputMonitorCallback' in dir(face)\n"
        "loaded = {'torch', 'lightning', 'transformers', 'accelerate', 'hydra'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.promise("S3-001", "S3-008", "S3-018", "S3-019", "S3-022", "S3-023", "S3-024", "S3-028", "S3-042", "S3-043")
def test_all_three_work_together_on_a_cpu(tmp_path, capsys, monkeypatch):
    """One trainer with all three prints the documents' lines and writes their files."""
    monkeypatch.setattr("stepscope.integrations.lightning.resources.SECONDS", 0.01)
    values = {**HOST, **GPU, "memory/used_bytes": 12.3 * 2**30, "memory/total_bytes": 32 * 2**30}
    resources = ResourceMonitorCallback(log_interval=1, make_machine=lambda: machine_of(Source(values))(0.01))
    profiler = ProfilerCallback(enabled=True, profile_epochs=[1], profile_steps=2, warmup_steps=1, log_top_k_ops=5)
    throughput = ThroughputMonitorCallback()
    model = Model({"forward": 0.1})
    trainer(tmp_path, [throughput, profiler, resources]).fit(model, loader(12, 4))
    printed = capsys.readouterr().out
    assert re.search(
        r"^ThroughputMonitor: Epoch 1 - samples/sec: \d+\.\d, memory_peak: \d+\.\dGB$", printed, re.MULTILINE
    )
    assert re.search(
        r"^ThroughputMonitor: Batch timing - load: \d+ms \(p95\), transform: \d+ms \(p95\)$", printed, re.MULTILINE
    )
    assert "Profiler: Top 5 slowest operations:\n1. " in printed
    assert re.search(r"^1\. .+ \(\d+\.\d% of time\)$", printed, re.MULTILINE)
    assert "ResourceMonitor: GPU 0 - Util: 95%, Mem: 22.0/24.0GB, Temp: 75°C\n" in printed
    assert "ResourceMonitor: CPU - Usage: 50%, Memory: 12.3/32GB\n" in printed
    trace = json.loads((tmp_path / "profiler_traces" / "chrome_trace_epoch_1.json").read_text())
    assert trace["traceEvents"]
    assert sorted(path.name for path in (tmp_path / "resource_logs").iterdir()) == ["epoch_0.csv", "epoch_1.csv"]
    with (tmp_path / "resource_logs" / "epoch_0.csv").open(newline="") as file:
        [row, *_] = csv.DictReader(file)
    assert (row["gpu/0/temperature_celsius"], row["cpu/usage_ratio"]) == ("75", "0.5")
    assert last_run().state == "finished"


@pytest.mark.promise("S3-009", "S3-010", "S3-011", "S3-012", "S3-013", "S3-014", "S3-015", "S3-016")
def test_figures_of_an_epoch_are_recorded(tmp_path):
    """Every figure of the documents is in the run and in the callback, once an epoch."""
    callback = ThroughputMonitorCallback()
    data = loader(10, 4)
    data.dataset.cache = {0: torch.zeros(2**18)}
    trainer(tmp_path, [callback]).fit(Model(), data)
    past = last_run()
    parts = [f"{name}/{part}" for name in ("batch_load_time_ms", "batch_transform_time_ms") for part in
             ("avg", "p50", "p95", "p99")]  # fmt: skip
    names = ["samples_per_second", "batches_per_second", "throughput_efficiency", "memory_dataset_mb", "memory_peak_mb"]
    for name in [*parts, *names, "memory_cache_mb"]:
        assert len(past.series(name).value) == 2, name
        assert past.series(name).value[-1] == pytest.approx(callback.metrics[name])
    assert callback.metrics["memory_cache_mb"] == 1.0
    assert callback.metrics["memory_dataset_mb"] == pytest.approx(10 * 8 * 4 / 2**20)
    assert 0 <= callback.metrics["throughput_efficiency"] <= 1
    ratio = callback.metrics["samples_per_second"] / callback.metrics["batches_per_second"]
    assert ratio == pytest.approx(10 / 3)
    [definitions] = [event for event in past.events() if event["kind"] == "definitions"]
    assert "without evaluation and checkpoints" in definitions["samples_per_second"]


@pytest.mark.promise("S3-021")
def test_samples_are_right_with_accumulation_and_a_short_batch(tmp_path):
    """A step is one of the optimizer; it has the samples of all its batches, however many and however long."""
    options = {"accumulate_grad_batches": 4, "max_epochs": 2}
    trainer(tmp_path, [ThroughputMonitorCallback()], **options).fit(Model(), loader(23, 4))
    past = last_run()
    assert past.series("samples").value.tolist() == [16, 7, 16, 7]
    assert past.series("samples").step.tolist() == [0, 1, 2, 3]
    assert past.series("epoch").value.tolist() == [0, 0, 1, 1]


@pytest.mark.promise("S3-021")
def test_samples_are_right_with_variable_batches(tmp_path):
    """Batches of different length count as they are."""
    sampler = [[0, 1, 2], [3], [4, 5]]
    data = torch.utils.data.DataLoader(loader(6).dataset, batch_sampler=sampler)
    trainer(tmp_path, [ThroughputMonitorCallback()], max_epochs=1).fit(Model(), data)
    assert last_run().series("samples").value.tolist() == [3, 1, 2]


def test_learning_rate_and_loss_are_those_of_the_step(tmp_path):
    """The rate is the one that the step used, not what the scheduler set after it; the loss is a mean over batches."""
    trainer(tmp_path, [ThroughputMonitorCallback()], max_epochs=3, accumulate_grad_batches=2).fit(Model(), loader(8, 4))
    past = last_run()
    assert past.series("learning_rate").value.tolist() == [0.1, 0.05, 0.025]
    losses = past.series("loss").value
    assert losses[0] > losses[1] > losses[2] > 0


@pytest.mark.parametrize("place", ["data", "transform", "forward", "backward", "optimizer"])
def test_time_is_charged_where_it_was_spent(tmp_path, place):
    """A planted pause is found in its own phase and in no other."""
    data = loader(24, 2, seconds=NAP / 2 if place == "data" else 0.0)
    trainer(tmp_path, [ThroughputMonitorCallback()], max_epochs=1).fit(Model({place: NAP}), data)
    past = last_run()
    phases = {name: sorted(past.series(name).value) for name in past.names() if name.startswith("phase/")
              and len(past.series(name).value) > 2}  # fmt: skip
    assert phases.pop(f"phase/{place}")[2] >= NAP
    assert max(values[0] for values in phases.values()) < NAP  # a busy machine adds to some steps, not to each
    steps, total = past.series("step_seconds").value, sum(past.series(name).value.sum() for name in past.names()
                                                         if name.startswith("phase/"))  # fmt: skip
    assert total == pytest.approx(steps.sum())


def test_evaluation_and_checkpoints_are_phases_and_no_throughput(tmp_path):
    """They belong to the step that they delay, and not to the time that throughput is measured by."""
    callback = ThroughputMonitorCallback()
    options = {"enable_checkpointing": True, "val_check_interval": 1, "max_epochs": 1}
    trainer(tmp_path, [callback], **options).fit(
        Model({"evaluation": 0.2, "checkpoint": 0.2}), loader(4, 1), loader(1, 1)
    )
    past = last_run()
    assert past.series("phase/evaluation").value.min() >= 0.2
    assert kinds(past).count("evaluation") == 4
    assert "checkpoint" in kinds(past)
    steps, evaluated = past.series("step_seconds").value.sum(), past.series("phase/evaluation").value.sum()
    assert callback.metrics["batches_per_second"] > 4 / (steps - evaluated / 2)  # as if nothing had stood in between


@pytest.mark.promise("S3-008", "S3-021")
def test_resumed_training_goes_on_at_its_step(tmp_path):
    """After a resume the steps go on with the trainer's, and only what this process trained on is counted."""
    first = trainer(tmp_path, [ThroughputMonitorCallback()], max_epochs=1, enable_checkpointing=True)
    first.fit(Model(), loader(12, 4))
    callback, resources = ThroughputMonitorCallback(), ResourceMonitorCallback(timeseries_path=tmp_path / "logs")
    second = trainer(tmp_path, [callback, resources], max_epochs=3)
    second.fit(Model(), loader(12, 4), ckpt_path=first.checkpoint_callback.best_model_path)
    past = last_run()
    assert past.series("samples").step.tolist() == [3, 4, 5, 6, 7, 8]
    assert past.series("samples").value.tolist() == [4] * 6


@pytest.mark.promise("S3-006")
def test_disabled_callbacks_do_nothing(tmp_path, capsys):
    """With `enabled=False` nothing is recorded, written or printed."""
    callbacks = [ThroughputMonitorCallback(enabled=False), ResourceMonitorCallback(enabled=False), ProfilerCallback()]
    trainer(tmp_path, callbacks).fit(Model(), loader())
    assert stepscope.runs() == []
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_callback_that_fails_does_not_stop_the_training(tmp_path, monkeypatch, capsys):
    """Whatever raises inside a callback is told once, and training goes on."""

    def broken(*_):
        raise RuntimeError("broken")

    for name in ("figures", "fit_begins"):
        monkeypatch.setattr(ThroughputMonitorCallback, name, broken)
    monkeypatch.setattr("stepscope.integrations.lightning.recording.FitRecording.batch_ended", broken)
    fitted = trainer(tmp_path, [ThroughputMonitorCallback()])
    fitted.fit(Model(), loader(8, 4))
    assert fitted.global_step == 4
    told = capsys.readouterr().err
    assert told.count("cannot go on in ThroughputMonitorCallback.on_train_batch_end: RuntimeError: broken") == 1


@pytest.mark.promise("S3-017", "X-06")
@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("timing", [True, False])
def test_throughput_reports_every_so_many_epochs_what_is_wanted(tmp_path, capsys, memory, timing):
    """`log_interval` counts epochs, the last one is always told; `track_memory` and `track_timing` are switches."""
    callback = ThroughputMonitorCallback(log_interval=2, track_memory=memory, track_timing=timing)
    trainer(tmp_path, [callback], max_epochs=5).fit(Model(), loader(4, 4))
    told = re.findall(r"^ThroughputMonitor: Epoch (\d+) - (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert [epoch for epoch, _ in told] == ["1", "3", "4"]
    assert all(("memory_peak" in line) is memory for _, line in told)
    names = set(last_run().names())
    assert ("memory_peak_mb" in names, "batch_load_time_ms/p95" in names) == (memory, timing)
    assert "samples_per_second" in names


@pytest.mark.promise("S3-039", "X-06")
@pytest.mark.parametrize("kind", ["gpu", "cpu", "io"])
def test_resources_are_reported_every_so_many_batches(tmp_path, capsys, monkeypatch, kind):
    """`log_interval` counts batches; each of the three kinds of monitoring can be switched off, and is then absent."""
    monkeypatch.setattr("stepscope.integrations.lightning.resources.SECONDS", 0.001)
    asked = {}

    def sources(**wanted):
        asked.update(wanted)
        return [Source({**HOST, **GPU})]

    monkeypatch.setattr("stepscope.integrations.lightning.resources.chosen_sources", sources)
    callback = ResourceMonitorCallback(log_interval=3, **{f"{kind}_monitoring": False})
    trainer(tmp_path, [callback], max_epochs=1).fit(Model({"forward": 0.05}), loader(9, 1))
    assert 1 <= capsys.readouterr().out.count("ResourceMonitor: GPU 0") <= 3
    assert {name: wanted for name, wanted in asked.items() if name != "rank"} == {
        name: name != kind for name in ("gpu", "cpu", "io")
    }


@pytest.mark.promise("S3-027")
@pytest.mark.parametrize("is_on", [True, False])
def test_profiler_records_shapes_and_stacks_as_it_is_told(tmp_path, is_on):
    """`record_shapes` and `with_stack` decide what is in the trace; `cuda` is passed over where there is none."""
    callback = ProfilerCallback(
        enabled=True, profile_epochs=[0], profile_steps=2, warmup_steps=1, record_shapes=is_on, with_stack=is_on,
        activities=["cpu", "cuda"],
    )  # fmt: skip
    trainer(tmp_path, [callback], max_epochs=1).fit(Model(), loader(12, 4))
    trace = json.loads((tmp_path / "profiler_traces" / "chrome_trace_epoch_0.json").read_text())
    told = [event.get("args", {}) for event in trace["traceEvents"]]
    assert any("Input Dims" in args for args in told) is is_on
    assert any("Python parent id" in args or "Call stack" in args for args in told) is is_on


@pytest.mark.promise("S3-029")
def test_profiler_that_fails_does_not_stop_the_training(tmp_path, monkeypatch, capsys):
    """An error of torch's profiler ends the profile only."""

    def broken(**_):
        raise RuntimeError("no profiler here")

    monkeypatch.setattr(torch.profiler, "profile", broken)
    fitted = trainer(tmp_path, [ProfilerCallback(enabled=True, profile_epochs=[0])])
    fitted.fit(Model(), loader(8, 4))
    assert fitted.global_step == 4
    assert "no profiler here" in capsys.readouterr().out
    assert last_run().state == "finished"


@pytest.mark.promise("S3-026")
def test_profiler_says_if_no_epoch_is_profiled(tmp_path, capsys):
    """Epochs that the training does not have are told at its begin, with those that it has."""
    trainer(tmp_path, [ProfilerCallback(enabled=True, profile_epochs=[5])]).fit(Model(), loader())
    assert "Profiler: no epoch of [5] is trained: they are 0 to 1" in capsys.readouterr().out


@pytest.mark.promise("S3-026", "S3-028", "S3-040", "S3-041", "S3-042")
def test_options_have_the_documents_defaults():
    """Every option of the documents exists, with their default."""
    throughput, profiler, resources = ThroughputMonitorCallback(), ProfilerCallback(), ResourceMonitorCallback()
    assert (throughput.enabled, throughput.log_interval) == (True, 1)
    assert throughput.track_memory
    assert throughput.track_timing
    assert (profiler.enabled, profiler.profile_epochs, str(profiler.output_dir)) == (
        False,
        [1, 5, 10],
        "profiler_traces",
    )
    shown = {
        name: profiler.options[name] for name in ("steps", "warmup", "record_shapes", "with_stack", "top", "export")
    }
    assert shown == {
        "steps": 100,
        "warmup": 5,
        "record_shapes": True,
        "with_stack": False,
        "top": 15,
        "export": True,
    }
    assert profiler.options["activities"] == ("cpu", "cuda")
    assert (resources.enabled, resources.log_interval, str(resources.timeseries_path)) == (True, 10, "resource_logs")
    assert resources.export_timeseries
    assert resources.alert_options == {
        "alert_gpu_underutilization": True,
        "alert_memory_pressure": True,
        "alert_io_bottleneck": True,
        "gpu_util_threshold": 0.5,
        "memory_threshold": 0.9,
        "io_wait_threshold": 0.3,
    }


@pytest.mark.promise("X-05")
def test_thresholds_of_the_resource_callback_may_be_percent():
    """90 and "90%" are 0.9; what cannot be meant is refused."""
    options = ResourceMonitorCallback(memory_threshold=90, io_wait_threshold="30%").alert_options
    assert (options["memory_threshold"], options["io_wait_threshold"]) == (0.9, 0.3)
    with pytest.raises(UsageError, match=r"memory_threshold is 1.5, not a fraction .*; write memory_threshold=0.9"):
        ResourceMonitorCallback(memory_threshold=1.5)


def test_alert_options_are_recorded(tmp_path):
    """The resource callback records which rules are wanted, for the rules of the watcher."""
    callback = ResourceMonitorCallback(gpu_util_threshold=0.99, make_machine=lambda: machine_of(Source(HOST))(1.0))
    trainer(tmp_path, [callback], max_epochs=1).fit(Model(), loader())
    [event] = [event for event in last_run().events() if event["kind"] == "alert_options"]
    assert event["gpu_util_threshold"] == 0.99


def test_source_that_fails_does_not_stop_the_training(tmp_path, capsys):
    """A machine that cannot be looked at is told, and training goes on."""

    def broken():
        raise OSError("no machine")

    fitted = trainer(tmp_path, [ResourceMonitorCallback(make_machine=broken)])
    fitted.fit(Model(), loader(8, 4))
    assert fitted.global_step == 4
    assert "cannot keep the machine's samples: OSError: no machine" in capsys.readouterr().err


def test_exception_of_the_training_ends_the_run_as_failed(tmp_path):
    """What the training raises goes on, and the run knows it."""

    class Failing(Model):
        def training_step(self, batch, index):
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        trainer(tmp_path, [ThroughputMonitorCallback()]).fit(Failing(), loader())
    past = last_run()
    assert past.state == "failed"
    assert "planted" in past.cause


class Gan(lightning.LightningModule):
    """Two optimizers that the module calls itself."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        for optimizer, loss in zip(
            self.optimizers(), (self.maker(batch).mean(), self.judge(batch).mean()), strict=True
        ):
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.maker.parameters(), 0.1), torch.optim.SGD(self.judge.parameters(), 0.1)]


def test_module_that_steps_itself_has_all_phases(tmp_path):
    """With manual optimization and two optimizers a batch is one step, with its backward passes and updates."""
    trainer(tmp_path, [ThroughputMonitorCallback()], max_epochs=1).fit(Gan(), loader(8, 4))
    past = last_run()
    assert past.series("samples").value.tolist() == [4, 4]
    for phase in ("data", "forward", "backward", "optimizer"):
        assert len(past.series(f"phase/{phase}").value) == 2, phase


def test_users_profiler_is_left_as_it_was(tmp_path):
    """A profiler of the user's hears everything, and has its own methods back after the fit."""
    from lightning.pytorch.profilers import SimpleProfiler

    profiler = SimpleProfiler()
    fitted = trainer(tmp_path, [ThroughputMonitorCallback()], profiler=profiler)
    fitted.fit(Model(), loader(8, 4))
    assert fitted.profiler is profiler
    assert not {"start", "stop"} & set(vars(profiler))
    assert len(profiler.recorded_durations["run_training_batch"]) == 4


def test_profiler_that_does_nothing_is_left_as_it_was(tmp_path):
    """Lightning's own one has its methods back after the fit, and after a second one."""
    callback = ThroughputMonitorCallback()
    fitted = trainer(tmp_path, [callback])
    for epochs in (1, 2):
        fitted.fit_loop.max_epochs = epochs
        fitted.fit(Model(), loader(8, 4))
        assert not {"start", "stop", "profile"} & set(vars(fitted.profiler))
        assert last_run().series("samples").value.tolist() == [4, 4]


def test_loader_that_cannot_be_timed_still_loads(tmp_path, monkeypatch, capsys):
    """Without shared memory for the workers' times, say, the training goes on."""

    def broken(*_):
        raise OSError("no space left")

    monkeypatch.setattr("stepscope.integrations.torch.dataset_transforms.DatasetTransforms._prepare", broken)
    fitted = trainer(tmp_path, [ThroughputMonitorCallback()], max_epochs=1)
    fitted.fit(Model(), loader(8, 4))
    assert fitted.global_step == 2
    assert "cannot time the dataset's transforms: OSError: no space left" in capsys.readouterr().err


def test_logger_writes_into_the_run_of_the_callbacks(tmp_path):
    """What a module logs is in the same run as the steps, at the same steps; other loggers get the figures too."""
    from lightning.pytorch.loggers import CSVLogger

    others = CSVLogger(tmp_path / "csv")
    logger = StepscopeLogger(project="logged", name="a name")
    options = {"logger": [logger, others], "log_every_n_steps": 1}
    trainer(tmp_path, [ThroughputMonitorCallback()], **options).fit(Model(), loader(8, 4))
    assert len(stepscope.runs()) == 1
    past = last_run()
    assert past.state == "finished"
    assert past.series("train_loss").step.tolist() == past.series("samples").step.tolist() == [0, 1, 2, 3]
    assert "logged" in past.path.parts
    [written] = (tmp_path / "csv").rglob("metrics.csv")
    assert "samples_per_second" in written.read_text()


def test_logger_works_alone(tmp_path):
    """Without a callback the logger begins and ends a run of its own, or uses the current one and leaves it open."""
    trainer(tmp_path, logger=StepscopeLogger(project="alone"), log_every_n_steps=1).fit(Model(), loader(8, 4))
    assert last_run().state == "finished"
    with stepscope.init(project="given") as run:
        trainer(tmp_path, logger=StepscopeLogger(), log_every_n_steps=1).fit(Model(), loader(8, 4))
        assert run.recording
    assert len(stepscope.open(run.path).series("train_loss").value) == 4


def test_transforms_are_timed_where_they_run(tmp_path):
    """The dataset's transforms are told from loading, in this process and in workers, and stay the user's own."""
    for workers in (0, 1):
        callback, data = ThroughputMonitorCallback(), loader(6, 2, num_workers=workers)
        data.dataset.transform = slow = Slow()
        data.dataset.__class__ = Transformed
        trainer(tmp_path, [callback], max_epochs=1).fit(Model(), data)
        assert callback.metrics["batch_transform_time_ms/p50"] >= 2 * 10, workers
        assert data.dataset.transform is slow


class Slow:
    """A transform that takes 10 ms."""

    def __call__(self, row):
        work(0.01)
        return row


class Transformed(type(loader().dataset)):
    """Rows with a transform."""

    def __getitem__(self, index):
        return self.transform(super().__getitem__(index))


PROGRAM = """
import lightning, torch
from tests.integrations.fits import Model, loader
from stepscope.callbacks import ThroughputMonitorCallback
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[ThroughputMonitorCallback()])
trainer.fit(Model(), loader(13, 2))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_that_lightning_starts_share_one_run(tmp_path):
    """Two ranks are two ranks of one run, each with its own samples; only one of them prints, and says whose rate."""
    import os

    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)], env=environment, capture_output=True, text=True, timeout=500,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(stepscope.runs()) == 1
    past = last_run()
    # The sampler of Lightning gives both ranks 7 of the 13, one of them twice.
    assert [past.series("samples", rank=rank).value.tolist() for rank in (0, 1)] == [[2, 2, 2, 1]] * 2
    assert len(re.findall(r"samples/sec: \d+\.\d on rank 0 of 2", done.stdout)) == 1
