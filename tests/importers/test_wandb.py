from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from stepscope.importers.binary import wandb
from tests.importers.foreign import field, history, items, shared, wandb_file


def read(tmp_path, data):
    path = tmp_path / "run-x.wandb"
    path.write_bytes(data)
    return wandb.FORMAT.read(str(path))


def test_the_real_file_is_read_whole():
    """The run of W&B's own tests: who it was, how it ended, and one sample of the machine."""
    run = wandb.FORMAT.read(str(shared("wandb-tb-samples/run-g9dvvkua.wandb")))
    assert run.facts["run_id"] == "g9dvvkua"
    assert run.facts["project"] == "code-toad"
    assert run.facts["exit_code"] == 0
    assert run.series("cpu/usage_ratio").value.tolist() == [0.243]
    assert 1613519040 < run.series("cpu/usage_ratio").time[0] < 1613519100
    assert run.notes == ()


def test_what_was_logged_is_read_back(tmp_path):
    """Numbers stand at their step and time; NaN is NaN; charts, texts and W&B's own keys are no metrics."""
    row = {"loss": 0.5, "_step": 7, "_timestamp": 1e9, "_runtime": 3.0, "deep": {"x": 1, "h": {"_type": "histogram"}}}
    run = read(tmp_path, wandb_file(history(row | {"text": "hello", "bad": math.nan, "far": "Infinity"})))
    assert run.names() == ["bad", "deep/x", "far", "loss"]
    assert run.series("loss").step.tolist() == [7]
    assert run.series("loss").time.tolist() == [1e9]
    assert math.isnan(run.series("bad").value[0])
    assert math.isinf(run.series("far").value[0])


def test_a_defined_metric_is_the_step(tmp_path):
    """`define_metric` names the step of others: what a Trainer logs stands at its global step."""
    defined = field(12, field(2, "*") + field(4, "train/global_step"))
    other = field(12, field(2, "val/*") + field(4, "val/step"))
    row = {"train/loss": 0.5, "train/global_step": 500, "val/acc": 1.0, "val/step": 3, "_step": 1}
    run = read(tmp_path, wandb_file(defined, other, history(row), history({"train/loss": 0.25, "_step": 2})))
    assert run.series("loss").step.tolist() == [500, 2]
    assert run.series("val/acc").step.tolist() == [3]


def test_configuration_and_machine_are_read(tmp_path):
    """Settings are facts without secrets; the machine's figures get our names and units."""
    settings = items(1, {"lr": 0.1, "api_key": "sk-abcdef0123456789abcdef"})
    who = (
        field(1, "abc") + field(3, "project") + field(4, settings) + field(8, "name") + field(17, field(1, 1700000000))
    )
    figures = items(3, {"gpu.0.gpu": 50, "gpu.0.powerWatts": 300.5, "cpu": 25, "proc.cpu.threads": 4})
    sample = field(2, field(1, 1700000001) + field(2, 500_000_000)) + figures
    run = read(tmp_path, wandb_file(field(17, who), field(7, sample), field(18, field(1, 1))))
    assert run.facts["config"] == {"lr": 0.1, "api_key": "[redacted]"}
    assert run.facts["name"] == "name"
    assert run.facts["exit_code"] == 1
    assert {name: run.series(name).value[0] for name in run.names()} == {
        "gpu/0/utilization_ratio": 0.5,
        "gpu/0/power_watts": 300.5,
        "cpu/usage_ratio": 0.25,
        "system/proc.cpu.threads": 4.0,
    }
    assert run.series("cpu/usage_ratio").time[0] == 1700000001.5


@given(some.lists(some.integers(0, 90_000), max_size=6))
def test_records_cross_blocks(tmp_path_factory, sizes):
    """A record of any size is put together again from its pieces."""
    rows = [history({"x": index, "text": "a" * size}, step=index) for index, size in enumerate(sizes)]
    run = read(tmp_path_factory.mktemp("wandb"), wandb_file(*rows))
    assert run.series("x").value.tolist() == list(range(len(sizes)))
    assert run.series("x").step.tolist() == list(range(len(sizes)))
    assert [note.partition(":")[0] for note in run.notes] == ["text, left out"] * bool(sizes)


def test_every_cut_leaves_the_records_before_it(tmp_path):
    """The file of a killed run is read up to its last whole record."""
    rows = [history({"x": step}, step=step) for step in range(4)]
    data, ends = wandb_file(*rows), [len(wandb_file(*rows[:count])) for count in range(5)]
    for cut in range(ends[0], len(data)):
        assert len(read(tmp_path, data[:cut]).series("x")) == sum(end <= cut for end in ends[1:])


def test_a_damaged_block_costs_that_block_alone(tmp_path):
    """After a wrong checksum reading goes on with the next block."""
    rows = [history({"x": step, "text": "a" * 1000}, step=step) for step in range(100)]
    data = bytearray(wandb_file(*rows))
    data[33_000] ^= 1
    run = read(tmp_path, bytes(data))
    kept = run.series("x").step
    assert 60 < len(kept) < 100
    assert kept[-1] == 99
    assert np.array_equal(kept, run.series("x").value)
    assert any("wrong checksum" in note for note in run.notes)
