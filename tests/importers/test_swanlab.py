from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stepscope.importers import formats
from stepscope.importers.binary import swanlab
from tests.importers.foreign import field, swanlab_file, swanlab_scalar

BRIDGES = Path(__file__).parents[2] / ".venv-bridges/bin/python"
WRITE = """
import math, sys, swanlab
run = swanlab.init(
    project="p", experiment_name="名", description="why", tags=["a", "ü"], group="g", mode="offline",
    logdir=sys.argv[1], config={"lr": 0.1, "deep": {"x": [1]}},
)
for step in range(40):
    swanlab.log({"loss": [math.nan, math.inf, -math.inf, step + 0.1][step % 4], "损失": step, "deep": {"x": -step}})
swanlab.log({"loss": 5.0, "later": 1.0}, step=7)
swanlab.log({"loss": 6.0}, step=1000)
swanlab.log({"text": swanlab.Text("hello")})
swanlab.finish(state="crashed", error="out of luck")
"""
READ = """
import json, sys
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.sdk.internal.core_python.store import DataStoreReader
reader = DataStoreReader()
reader.open(sys.argv[1])
told = {}
for data in reader:
    record = Record.FromString(data)
    if record.HasField("scalar"):
        each = record.scalar
        time = each.timestamp.seconds + each.timestamp.nanos / 1e9
        told.setdefault(each.key, []).append([each.step, time, each.value.number])
print(json.dumps(told))
"""


def with_swanlab(script, *arguments, home):
    """Run a script with SwanLab in its own environment; return what it printed last."""
    if not BRIDGES.exists():
        pytest.skip("SwanLab is not installed here: make bridges-env was not run")
    environment = {**os.environ, "HOME": str(home), "SWANLAB_SAVE_DIR": str(home / "swanlab")}
    command = [str(BRIDGES), "-c", script, *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=home, check=True, stdout=subprocess.PIPE)
    return (done.stdout.decode().splitlines() or [""])[-1]


def read(tmp_path, data):
    path = tmp_path / "run-x.swanlab"
    path.write_bytes(data)
    return swanlab.FORMAT.read(str(path))


@pytest.mark.slow
def test_a_run_of_swanlab_is_read_as_its_own_reader_reads_it(tmp_path):
    """Each scalar of a real run is there at its step and time, with what the run is called and how it ended."""
    with_swanlab(WRITE, tmp_path / "logs", home=tmp_path)
    [path] = tmp_path.glob("logs/run-*/*.swanlab")
    told = json.loads(with_swanlab(READ, path, home=tmp_path))
    [run] = formats.read(str(tmp_path / "logs"))
    assert run.format == "swanlab"
    assert set(told) <= {"loss", "损失", "deep/x", "later"}
    for key, points in told.items():
        series = run.series(key)
        found = zip(series.step.tolist(), series.time.tolist(), series.value.tolist(), strict=True)
        assert repr([list(point) for point in found]) == repr(points)
    assert sum(map(len, told.values())) >= 120
    wanted = {"project": "p", "name": "名", "notes": "why", "group": "g", "tags": ["a", "ü"], "state": "failed"}
    assert {key: run.facts[key] for key in wanted} == wanted
    assert run.facts["config"] == {"lr": 0.1, "deep": {"x": [1]}}
    assert run.facts["cause"] == "out of luck"
    assert abs(run.facts["created"] - path.stat().st_mtime) < 600
    assert run.notes == ("media and texts, left out: text (1 value)",)


@given(some.lists(some.tuples(some.integers(-(2**63), 2**63 - 1), some.floats())))
def test_what_is_written_is_read_back(tmp_path_factory, points):
    """Steps and values come back as they were, whatever they are."""
    data = swanlab_file(*(swanlab_scalar("损失", step, 1.5, value) for step, value in points))
    series = read(tmp_path_factory.mktemp("swanlab"), data).series("损失")
    assert series.step.tolist() == [step for step, _ in points]
    assert list(map(repr, series.value.tolist())) == [repr(value) for _, value in points]


def test_figures_of_the_machine_get_our_names(tmp_path):
    """What SwanLab samples is no metric of the training: it has our names and units, and no step."""
    figures = {"cpu.pct": 50.0, "mem.pct": 25.0, "gpu.1.pct": 75.0, "gpu.1.power": 300.0, "cpu.thds": 7.0}
    run = read(
        tmp_path, swanlab_file(*(swanlab_scalar(f"__swanlab__.{key}", 3, 2.0, one) for key, one in figures.items()))
    )
    assert {name: run.series(name).value.tolist() for name in run.names()} == {
        "cpu/usage_ratio": [0.5],
        "memory/used_ratio": [0.25],
        "gpu/1/utilization_ratio": [0.75],
        "gpu/1/power_watts": [300.0],
        "system/cpu.thds": [7.0],
    }


def test_a_newer_version_is_read_as_far_as_it_fits(tmp_path):
    """The file's version is told if we do not know it; what is as before is kept."""
    run = read(tmp_path, swanlab_file(swanlab_scalar("loss", 1, 1.0, 0.5), version=3))
    assert run.series("loss").value.tolist() == [0.5]
    assert run.notes == ("its format has version 3, newer than ours (2): what fits is read",)


def test_a_missing_file_beside_it_costs_its_facts_alone(tmp_path):
    """A run file that was copied without its folder is read; the note says what is missing."""
    run = read(tmp_path, swanlab_file(field(20, field(5, 1)), swanlab_scalar("loss", 1, 1.0, math.inf)))
    assert run.series("loss").value.tolist() == [math.inf]
    assert "config" not in run.facts
    assert run.notes[0].startswith("what was saved beside it is left out: cannot load")
