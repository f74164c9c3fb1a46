"""What the first projects promised about W&B and MLflow, with real trainings: the figures are in these tools."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.store.layout import RunFolder
from stepscope.store.sinks import DONE, read_sinks
from tests.exporters.sinks.mlflow_cases import read
from tests.exporters.sinks.wandb_rows import rows_in, summary_in
from tests.integration.processes import until, wait_until_written

pytestmark = [pytest.mark.processes, pytest.mark.slow]
FIT = """
    import sys
    import torch
    torch.set_num_threads(1)
    import stepscope
    from stepscope.callbacks import ProfilerCallback, ResourceMonitorCallback, ThroughputMonitorCallback
    from tests.integrations.fits import Model, loader, trainer

    run = stepscope.init(project="fit", exporters={"sinks": ["wandb://?mode=offline&dir=" + sys.argv[1]]})
    print(run.path, flush=True)
    callbacks = [
        ThroughputMonitorCallback(),
        ResourceMonitorCallback(log_interval=1),
        ProfilerCallback(enabled=True, profile_epochs=[1], profile_steps=2, warmup_steps=1, log_top_k_ops=5),
    ]
    trainer(".", callbacks).fit(Model({"forward": 0.4}), loader(16, 4))
    run.finish()
"""
LOOP = """
    import stepscope

    run = stepscope.init(project="loop", name="first", config={"lr": 0.1}, tags=["blue"],
                         exporters={"sinks": ["mlflow+sqlite:///mlflow.db"]})
    print(run.path, flush=True)
    for number in range(50):
        with run.step():
            run.log({"loss": 1 / (1 + number)})
    run.finish()
"""
LINES = (
    r"^ThroughputMonitor: Epoch 1 - samples/sec: \d",
    r"^ResourceMonitor: CPU - Usage: \d",
    r"^Profiler: Top 5 slowest operations:$",
)


def sent(path):
    """Wait until the one sink of a run has everything; return its state."""
    wait_until_written(Path(path))
    until(lambda: [one.state for one in read_sinks(RunFolder(Path(path)))] == [DONE], "the end of sending", 120)
    [state] = read_sinks(RunFolder(Path(path)))
    return state


def points_of(rows, name):
    """Return the values of a metric in W&B's history, by its step there; by their order without one."""
    return [(row.get("stepscope/step"), row[name]) for row in rows if name in row]


@pytest.mark.training
@pytest.mark.promise("S1-080", "S2-063", "S3-005", "S3-049")
@pytest.mark.skipif(not (find_spec("lightning") and find_spec("wandb")), reason="needs lightning and wandb")
def test_figures_of_the_callbacks_are_in_wandb_and_in_the_baseline_report(bench, tmp_path, monkeypatch):
    """Throughput, resources and the profile are on the console, in W&B's history, and in a report that is kept."""
    trainer = bench.start(FIT, tmp_path / "there", environ={"PYTHONWARNINGS": "ignore"})
    assert trainer.wait() == 0, trainer.err
    path = next(line for line in trainer.out.splitlines() if Path(line).is_absolute())
    for line in LINES:
        assert re.search(line, trainer.out, re.MULTILINE), line
    assert sent(path).refused_rows == 0

    past, rows = stepscope.open(path), rows_in(tmp_path / "there")
    names = past.names()
    figures = [name for name in names if name.startswith("profiler/")]
    assert {"profiler/data_wait_ratio", *figures} == set(figures)
    assert len(figures) == 6
    for name in ("samples_per_second", "throughput_efficiency", "memory_peak_mb", "loss", *figures):
        series = past.series(name)
        assert points_of(rows, name) == list(zip(series.step.tolist(), series.value.tolist(), strict=True)), name
    for name in ("cpu/usage_ratio", "memory/used_bytes", "process/0/cpu_ratio"):
        assert [value for _, value in points_of(rows, name)] == past.series(name).value.tolist(), name
    assert summary_in(tmp_path / "there")["stepscope/state"] == "finished"

    monkeypatch.chdir(tmp_path)
    assert main(["report", path, "--baseline"]) == 0
    kept = {file.suffix: file.read_text() for file in (tmp_path / "docs" / "performance").iterdir()}
    assert sorted(kept) == [".html", ".json", ".md"]
    assert [suffix for suffix, text in kept.items() if "wandb" not in text] == []
    assert "samples_per_second" in kept[".json"]


@pytest.mark.promise("S1-079", "S2-063")
@pytest.mark.skipif(not find_spec("mlflow"), reason="needs mlflow")
def test_a_run_is_in_mlflow_as_its_own_client_reads_it(bench):
    """A database beside the training, named by a relative path, has the rows, the configuration and the end."""
    trainer = bench.start(LOOP)
    assert trainer.wait() == 0, trainer.err
    path = trainer.out.splitlines()[0]
    known = sent(path).known
    found = read(f"sqlite:///{bench.folder / 'mlflow.db'}", known["run_id"])
    assert (found["experiment"], found["info"]["run_name"], found["info"]["status"]) == ("loop", "first", "FINISHED")
    assert found["params"]["lr"] == "0.1"
    assert found["tags"]["stepscope.tag.blue"] == "true"
    series = stepscope.open(path).series("loss")
    assert [(step, float(value)) for name, _, step, value in found["points"] if name == "loss"] == list(
        zip(series.step.tolist(), series.value.tolist(), strict=True)
    )
