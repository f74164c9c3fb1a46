"""The parts of the Lightning callbacks that need no training."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import numpy as np
import pytest

from stepscope.core.vocabulary import GIB, MIB
from stepscope.integrations.lightning.action_phases import ActionPhases, Durations, phase_of
from stepscope.integrations.lightning.resource_csv import ResourceTable
from stepscope.integrations.numerics.memory import MOST_OBJECTS, dataset_bytes, peak_on_device, peak_resident
from stepscope.integrations.torch.batch import count_samples, count_tokens


class Phases:
    """Stands in for a run: keeps what is open."""

    def __init__(self):
        self.open, self.closed = [], []

    def __call__(self, name):
        return Phase(self, name)


class Phase:
    def __init__(self, phases, name):
        self.phases, self.name = phases, name

    def __enter__(self):
        self.phases.open.append(self.name)

    def __exit__(self, *_):
        assert self.phases.open.pop() == self.name
        self.phases.closed.append(self.name)


class Ticks:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


@pytest.fixture
def listening():
    phases, clock = Phases(), Ticks()
    actions = ActionPhases(phases, clock)
    actions.active = True
    return actions, phases, clock


@pytest.mark.parametrize(
    ("action", "phase"),
    [
        ("[_TrainingEpochLoop].train_dataloader_next", "data"),
        ("[Strategy]DDPStrategy.batch_to_device", "copy"),
        ("[Strategy]DDPStrategy.training_step", "forward"),
        ("[Strategy]SingleDeviceStrategy.backward", "backward"),
        ("[LightningModule]Model.optimizer_step", "optimizer"),
        ("save_checkpoint", "checkpoint"),
        ("[Callback]EarlyStopping{'monitor': 'x'}.on_train_batch_end", "callbacks"),
        ("[Callback]ThroughputMonitorCallback.on_train_batch_end", None),
        ("[LightningModule]Model.on_train_batch_start", "hooks"),
        ("run_training_epoch", "framework"),
        ("run_training_batch", None),
        ("[_EvaluationLoop].val_next", None),
    ],
)
def test_actions_are_phases(action, phase):
    """Each action of Lightning's trainer is the phase that its name says, or none."""
    assert phase_of(action) == phase


def test_hooks_that_nobody_overrides_are_no_phases():
    """Of the many empty hooks only those count that a module or callback has filled."""
    pytest.importorskip("lightning")
    import lightning

    from stepscope.integrations.lightning.recording import is_empty

    class Mine(lightning.LightningModule):
        def on_train_batch_start(self, batch, index):
            """Do something."""

    class Call(lightning.Callback):
        def on_train_epoch_end(self, trainer, module):
            """Do something."""

    call = Call()
    trainer = SimpleNamespace(callbacks=[call], lightning_module=Mine(), datamodule=None)
    assert not is_empty(trainer, "[LightningModule]Mine.on_train_batch_start")
    assert is_empty(trainer, "[LightningModule]Mine.on_train_batch_end")
    assert not is_empty(trainer, f"[Callback]{call.state_key}.on_train_epoch_end")
    assert is_empty(trainer, f"[Callback]{call.state_key}.on_train_batch_end")
    assert not is_empty(trainer, "run_training_batch")


def test_question_about_a_hook_that_fails_is_no_fault_of_the_training():
    """A class that cannot be looked at has a phase."""

    def broken(_action):
        raise RuntimeError("odd class")

    phases = Phases()
    actions = ActionPhases(phases, is_empty=broken)
    actions.active = True
    actions.begin_action("[LightningModule]Odd.on_train_batch_start")
    assert phases.open == ["hooks"]


@pytest.mark.parametrize(
    ("loaded", "expected"), [({"pytorch_lightning": 1}, "pytorch_lightning"), ({}, "lightning.pytorch")]
)
def test_package_of_lightning_is_the_one_in_use(loaded, expected):
    """Of Lightning's two packages the one that the program has loaded is used, else the newer name."""
    pytest.importorskip("lightning")
    pytest.importorskip("pytorch_lightning")
    from stepscope.integrations.lightning.base import lightning_package

    assert lightning_package(loaded).__name__ == expected


@pytest.mark.promise("S3-051")
def test_page_has_every_option_and_what_may_be_missing():
    """docs/reference/lightning.md names every option of the three callbacks, and what may be missing."""
    pytest.importorskip("lightning")
    import inspect
    from pathlib import Path

    import stepscope.callbacks as face

    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "lightning.md").read_text(encoding="utf-8")
    for name in ("ThroughputMonitorCallback", "ProfilerCallback", "ResourceMonitorCallback"):
        options = set(inspect.signature(getattr(face, name)).parameters) - {"project", "make_machine"}
        assert {option for option in options if f"`{option}`" not in page} == set(), name
    advice = page.partition("## If something is missing")[2]
    for word in ("`enabled`", "callbacks=", "ImportError", "samples_per_second", "slower"):
        assert word in advice


def test_pauses_are_counted_once(listening):
    """A checkpoint inside an evaluation is one pause, and what else happens in it is evaluation."""
    actions, phases, clock = listening
    actions.enter("evaluation")
    clock.now = 5
    actions.begin_action("save_checkpoint")
    clock.now = 7
    actions.end_action("save_checkpoint")
    actions.begin_action("[Strategy]X.batch_to_device")
    actions.end_action("[Strategy]X.batch_to_device")
    clock.now = 10
    actions.leave("evaluation")
    assert actions.paused_ns == 10
    assert phases.closed == ["checkpoint", "evaluation"]


def test_action_that_never_began_is_not_ended(listening):
    """The end of an action that began before we listened closes nothing."""
    actions, phases, _ = listening
    actions.begin_action("[Strategy]X.training_step")
    actions.end_action("[Strategy]X.backward")
    actions.end_action("save_checkpoint")
    assert phases.open == ["forward"]
    actions.detach()
    assert phases.open == []


def test_durations_keep_their_mean_and_their_spread():
    """However many there are, the mean is exact and the percentiles are those of an even selection."""
    durations = Durations(kept=64)
    for number in range(10_000):
        durations.add(number * 1_000_000)
    found = durations.milliseconds()
    assert found["avg"] == pytest.approx(4999.5)
    assert [found[name] for name in ("p50", "p95", "p99")] == pytest.approx([5000, 9500, 9900], rel=0.05)
    assert Durations().milliseconds() == {}


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (np.zeros((4, 2)), 4),
        ([np.zeros((4, 2)), np.zeros(4)], 4),
        ({"text": ["a", "b"], "label": np.zeros(2)}, 2),
        ({"meta": {"scale": np.float32(1)}, "image": np.zeros((5, 3))}, 5),
        (np.float32(1), None),
        ("text", None),
        ([], None),
        (None, None),
    ],
)
def test_samples_of_a_batch(batch, samples):
    """The first array or list of texts says how many samples a batch has; where there is none it is not known."""
    assert count_samples(batch) == samples


def test_tokens_of_a_batch_are_those_without_padding():
    """The attention mask counts, where there is one."""
    mask = np.array([[1, 1, 0], [1, 0, 0]])
    assert count_tokens({"input_ids": np.zeros((2, 3)), "attention_mask": mask}) == 3
    assert count_tokens([mask]) is None


def test_dataset_is_measured_with_its_caches_apart():
    """Arrays and texts count once each; what hangs below something called a cache counts as cache."""

    class Data:
        def __init__(self):
            self.images = np.zeros(1000, dtype=np.uint8)
            self.again = self.images
            self.names = ["abc"]
            self.image_cache = {0: np.zeros(50, dtype=np.uint8)}

    class Part:
        dataset = None

        def __init__(self):
            self.dataset = Data()

    assert dataset_bytes(Data()) == (1003, 50)
    assert dataset_bytes(Part()) == (1003, 50)
    assert dataset_bytes(list(range(3))) == (None, None)


def test_dataset_of_too_many_objects_is_not_measured():
    """Rather nothing than a wrong or a slow answer."""
    assert dataset_bytes([object() for _ in range(MOST_OBJECTS + 1)]) == (None, None)


def test_peak_memory_is_that_of_the_process(tmp_path):
    """The kernel's high-water mark, in bytes; a device that is no GPU has no peak of its own."""
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\t    2048 kB\n")
    assert peak_resident(status) == 2 * MIB
    assert peak_resident(tmp_path / "none") > MIB
    assert peak_on_device(None) is None


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.promise("S3-042")
def test_table_grows_by_rows_and_columns(tmp_path):
    """A value that comes later gives the table a column; before, and where it is absent, the cell is empty."""
    table = ResourceTable(tmp_path / "logs" / "epoch_0.csv")
    table.add({"time": 1794787983.5, "step": 0.0, "cpu/usage_ratio": 0.25})
    table.add({"time": 1794787984.5, "step": 1.0, "gpu/0/power_watts": 300.0})
    assert rows_of(table.path) == [
        {"time": "1794787983.500", "step": "0", "cpu/usage_ratio": "0.25", "gpu/0/power_watts": ""},
        {"time": "1794787984.500", "step": "1", "cpu/usage_ratio": "", "gpu/0/power_watts": "300"},
    ]


def test_table_goes_on_after_a_resume_and_keeps_older_ones(tmp_path):
    """A resumed training goes on in its file; a new one leaves the old file under another name."""
    path = tmp_path / "epoch_0.csv"
    ResourceTable(path).add({"time": 1.0, "step": 0.0, "a": 1.0})
    ResourceTable(path, resume=True).add({"time": 2.0, "step": 1.0, "b": 2.0})
    assert [(row["time"], row["a"], row["b"]) for row in rows_of(path)] == [("1.000", "1", ""), ("2.000", "", "2")]
    ResourceTable(path).add({"time": 3.0, "step": 0.0, "a": 1.0})
    assert [row["time"] for row in rows_of(path)] == ["3.000"]
    assert len(rows_of(tmp_path / "epoch_0.1.csv")) == 2


@pytest.mark.promise("S3-043")
def test_lines_leave_out_what_is_not_known():
    """The documents' lines, with GB for 2**30 bytes; without a GPU, a temperature or a size the rest is said."""
    pytest.importorskip("lightning")
    from stepscope.integrations.lightning.resources import resource_lines

    memory = {"memory/used_bytes": 12.3 * GIB, "memory/total_bytes": 32 * GIB}
    gpu = {"gpu/0/utilization_ratio": 0.85, "gpu/0/memory_used_bytes": 6.2 * GIB, "gpu/0/memory_total_bytes": 8 * GIB}
    assert resource_lines({"cpu/usage_ratio": 0.45, **memory, **gpu, "gpu/0/temperature_celsius": 72.0}) == [
        "ResourceMonitor: GPU 0 - Util: 85%, Mem: 6.2/8.0GB, Temp: 72°C",
        "ResourceMonitor: CPU - Usage: 45%, Memory: 12.3/32GB",
    ]
    assert resource_lines({"gpu/mean_utilization_ratio": 0.5, **gpu}) == [
        "ResourceMonitor: GPU 0 - Util: 85%, Mem: 6.2/8.0GB"
    ]
    assert resource_lines({}) == []


@pytest.mark.promise("S3-018", "S3-019")
def test_lines_of_an_epoch_are_the_documents():
    """The documents' two lines for their own figures."""
    pytest.importorskip("lightning")
    from stepscope.callbacks import ThroughputMonitorCallback

    callback = ThroughputMonitorCallback()
    callback.metrics = {
        "samples_per_second": 45.2,
        "memory_peak_mb": 2.1 * 1024,
        "batch_load_time_ms/p95": 45.0,
        "batch_transform_time_ms/p95": 12.0,
    }
    alone = SimpleNamespace(current_epoch=1, world_size=1, global_rank=0)
    assert callback.lines(alone) == [
        "ThroughputMonitor: Epoch 1 - samples/sec: 45.2, memory_peak: 2.1GB",
        "ThroughputMonitor: Batch timing - load: 45ms (p95), transform: 12ms (p95)",
    ]
    callback.metrics = {"samples_per_second": 45.2}
    several = SimpleNamespace(current_epoch=1, world_size=4, global_rank=0)
    assert callback.lines(several) == ["ThroughputMonitor: Epoch 1 - samples/sec: 45.2 on rank 0 of 4"]


def test_options_that_are_not_passed_come_from_the_configuration(tmp_path, monkeypatch):
    """A callback follows its section of stepscope.yaml in any spelling; an argument of the program wins."""
    pytest.importorskip("lightning")
    from stepscope.callbacks import ProfilerCallback, ResourceMonitorCallback

    (tmp_path / "stepscope.yaml").write_text(
        "callbacks:\n  profiler: {enabled: true, profile_steps: 7, profile_epochs: [3]}\n"
        "  resource_monitor: {log_interval: 4, export_timeseries: false, timeseries_path: elsewhere}\n"
    )
    monkeypatch.chdir(tmp_path)
    profiler = ProfilerCallback(profile_epochs=[2])
    assert (profiler.enabled, profiler.options["steps"], profiler.profile_epochs) == (True, 7, [2])
    resources = ResourceMonitorCallback()
    assert (resources.log_interval, resources.export_timeseries) == (4, False)
    assert str(resources.timeseries_path) == "elsewhere"
