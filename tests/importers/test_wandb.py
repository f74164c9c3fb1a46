from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepscope.core.ring import NO_STEP
from stepscope.importers.binary import level_log, wandb, wandb_history
from tests.importers.foreign import field, history, items, shared, wandb_file

SCRIPT = """
import math, wandb
run = wandb.init(project="p", name="n", tags=["a", "ü"], notes="why", group="g", config={"lr": 0.1})
run.define_metric("val/*", step_metric="epoch")
for step in range(40):
    values = [math.nan, math.inf, -math.inf, step + 0.1]
    run.log({"loss": values[step % 4], "损失": step * 1.0, "deep": {"x": -step, "y": {"z": 0.5}}, "x" * 120: 1e-300})
    run.log({"val/acc": 1 / (step + 1), "epoch": step * 10, "text": "t", "yes": True, "none": None, "list": [1]})
run.log({"late": 2**62, "big": 2**70}, step=1000)
run.finish(exit_code=3)
"""


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


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["json", "json,typed"])
def test_a_run_of_wandb_is_read_as_its_own_classes_read_it(tmp_path, encoding):
    """Each number of a real file is there at its step, whether W&B wrote it as text, or with its type, too."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    quiet = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "HOME": str(tmp_path)}
    chosen = {"WANDB_DIR": str(tmp_path), "WANDB_X_HISTORY_VALUE_ENCODING": encoding, "WANDB_X_DISABLE_STATS": "true"}
    subprocess.run([sys.executable, "-c", SCRIPT], env={**os.environ, **quiet, **chosen}, cwd=tmp_path, check=True)
    [path] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    told: dict[str, list[tuple[int, float]]] = {}
    for record in (each for some_records in level_log.records(str(path), 0, pytest.fail) for each in some_records):
        row = proto.Record.FromString(record).history
        found = {".".join(item.nested_key): json.loads(item.value_json) for item in row.item}
        for name, value in found.items():
            if not name.startswith("_") and type(value) in {int, float}:
                step = found["epoch"] if name.startswith("val/") else row.step.num
                told.setdefault(name, []).append((step, float(value)))
    run = wandb.FORMAT.read(str(path))
    read_back = {
        name: zip(run.series(name).step.tolist(), run.series(name).value.tolist(), strict=True) for name in told
    }
    assert sum(map(len, told.values())) == 40 * 7 + 2
    assert {name: repr(list(points)) for name, points in read_back.items()} == {k: repr(v) for k, v in told.items()}
    named = {key: run.facts[key] for key in ("project", "name", "tags", "notes", "group", "config", "state", "cause")}
    assert named == {
        "project": "p",
        "name": "n",
        "tags": ["a", "ü"],
        "notes": "why",
        "group": "g",
        "config": {"lr": 0.1},
        "state": "failed",
        "cause": "exit code 3",
    }
    assert abs(run.facts["created"] - path.stat().st_mtime) < 600


def test_typed_values_are_read_without_their_text(tmp_path):
    """Fields 3 to 8 hold nothing, a switch, a zigzag integer, a double, a text or JSON; only numbers are metrics."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    record = proto.Record(num=1)
    record.history.step.num = 7
    kinds = {"none": 0, "boolean": True, "integer": -(2**40), "number": math.inf, "text": "5", "json": '{"a": 1}'}
    for kind, value in kinds.items():
        record.history.item.add(nested_key=["deep", kind], **{kind: value})
    run = read(tmp_path, wandb_file(record.SerializeToString()))
    assert {name: run.series(name).value.tolist() for name in run.names()} == {
        "deep.integer": [-(2.0**40)],
        "deep.number": [math.inf],
        "deep.json.a": [1.0],
    }
    assert run.series("deep.integer").step.tolist() == [7]


def typed(name, number, value):
    """Return an item in the order that W&B's core writes: the text, then the value with its type."""
    return field(2, name) + field(16, json.dumps(value)) + field(number, value)


ITEMS = some.one_of(
    some.builds(
        lambda name, value: (name, value, field(2, name) + field(16, json.dumps(value))),
        *(
            some.sampled_from(["x", "y", "_z", "损失", "n" * 100]),
            some.one_of(some.floats(), some.integers(), some.sampled_from(["", "word", "5"])),
        ),
    ),
    some.builds(lambda name, value: (name, value, typed(name, 6, value)), some.sampled_from(["x", "y"]), some.floats()),
    some.builds(
        lambda value: ("i", value, field(2, "i") + field(16, str(value)) + field(5, value * 2)), some.integers(0, 99)
    ),
    some.builds(lambda value: ("a.b", value, field(2, "a") + field(2, "b") + field(6, value)), some.floats()),
)
ROWS = some.lists(ITEMS, max_size=5, unique_by=lambda one: one[0])


@given(
    some.lists(some.tuples(ROWS, some.one_of(some.none(), some.integers(-9, 2**62)), some.booleans()), max_size=8),
    some.integers(1, 4),
    some.sampled_from([11, 90, 2**20]),
)
def test_many_rows_at_once_are_read_as_one_by_one(tmp_path_factory, rows, few, portion):
    """Each number stands at its row's step, in the order of the rows, however its item is written."""
    told: dict[str, list[tuple[int, str]]] = {}
    histories = []
    for row, step, is_first in rows:
        own = field(2, field(1, step)) if step is not None else b""
        parts = [own if is_first else b"", *(field(1, data) for _, _, data in row), b"" if is_first else own]
        histories.append(field(2, b"".join(parts)))
        for name, value, _ in row:
            if not name.startswith("_") and not isinstance(value, str):
                told.setdefault(name, []).append((NO_STEP if step is None else step, repr(float(value))))
    with patch.object(level_log, "READ_AT_ONCE", portion), patch.object(wandb_history, "FEW", few):
        run = read(tmp_path_factory.mktemp("wandb"), wandb_file(*histories))
    found = {name: (run.series(name).step.tolist(), run.series(name).value.tolist()) for name in run.names()}
    assert {name: list(zip(steps, map(repr, found), strict=True)) for name, (steps, found) in found.items()} == told


@pytest.mark.parametrize("size", [1, 7, 1000, 32768, 100_000])
def test_bytes_may_come_in_any_portions(tmp_path, size):
    """A file that grows is read as it comes: portions end anywhere, and nothing is kept back."""
    rows = [history({"x": step, "text": "a" * 900}, step=step) for step in range(80)]
    with patch.object(level_log, "READ_AT_ONCE", size):
        run = read(tmp_path, wandb_file(*rows))
    assert run.series("x").value.tolist() == list(range(80))
    assert not any("cut" in note for note in run.notes)


def test_what_was_logged_is_read_back(tmp_path):
    """Numbers stand at their step and time; NaN is NaN; charts, texts and W&B's own keys are no metrics."""
    row = {"loss": 0.5, "_step": 7, "_timestamp": 1e9, "_runtime": 3.0, "deep": {"x": 1, "h": {"_type": "histogram"}}}
    run = read(tmp_path, wandb_file(history(row | {"text": "hello", "bad": math.nan, "far": "Infinity"})))
    assert run.names() == ["bad", "deep.x", "far", "loss"]
    assert run.series("loss").step.tolist() == [7]
    assert run.series("loss").time.tolist() == [1e9]
    assert math.isnan(run.series("bad").value[0])
    assert math.isinf(run.series("far").value[0])


def test_the_size_of_an_image_is_no_metric(tmp_path):
    """What describes media is left out with a note, however many rows are read at once; numbers beside it are read."""
    parts = {"image._type": "image-file", "image.width": 8, "image.caption": "a", "loss": 0.5, "image_loss": 2.0}
    rows = [history(parts, step=step) for step in range(12)] + [history({"image.width": 3.0}, step=12)]
    (tmp_path / "run.wandb").write_bytes(wandb_file(*rows))
    run = wandb.FORMAT.read(str(tmp_path / "run.wandb"))
    assert {name: len(run.series(name)) for name in run.names()} == {"image.width": 1, "image_loss": 12, "loss": 12}
    assert run.notes == ("lists, switches, media and deeper objects, left out: image (12 values)",)


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
